"""Ten thousand runs: planning them and listing their store takes under two seconds of CPU time each, or, where the
machine is too slow or too busy for that, a small multiple of work that takes turns with it: planning a tenth of them,
reading the same files."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tepo.config.compose import compose, to_dict
from tepo.store.run_id import RECIPE
from tepo.studies.plan import make_plan, unique
from tepo.studies.study import load_study
from tepo_cli.commands.runs import listing


def test_planning_ten_thousand_runs(tmp_path: Path) -> None:
    study = load_study("panel-e")
    make_plan(study, "laptop", store=tmp_path)  # the five compositions, shared by all seeds

    def planning(seeds: int) -> float:
        started = time.process_time()
        units = make_plan(study, "laptop", store=tmp_path, seeds=range(seeds))
        todo = [unit for unit in unique(units) if not unit.done()]
        assert len(todo) == 5 * seeds
        return time.process_time() - started

    spent = planning(2000)
    assert spent < 2 or spent < 15 * planning(200)


def test_listing_ten_thousand_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = compose()
    text = json.dumps({"full": to_dict(replace(config, seed=1))})
    manifest = json.dumps({"status": "finished", "recipe": RECIPE})
    run, store = tmp_path / "run", tmp_path / "runs"
    os.makedirs(run / "eval" / "add3")
    for name, content in (("config.json", text), ("manifest.json", manifest), ("eval/add3/result.json", "{}")):
        (run / name).write_text(content)
    store.mkdir()
    for number in range(10_000):  # links: making and deleting so many folders takes longer than listing them
        os.symlink(run, store / f"{number:012x}")
    started = time.process_time()
    listing(store, every=True)
    spent = time.process_time() - started
    assert capsys.readouterr().out.count("finished 36/36 1") == 10_000
    assert spent < 2 or spent < 5 * reading(store)


def reading(store: Path) -> float:
    """CPU seconds of opening and parsing what a listing cannot do without."""
    started = time.process_time()
    for entry in os.scandir(store):
        for name in ("config.json", "manifest.json"):
            json.loads(Path(entry.path, name).read_bytes())
        assert os.path.exists(f"{entry.path}/eval/add3/result.json")
    return time.process_time() - started
