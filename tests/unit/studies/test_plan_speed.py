"""Ten thousand runs: planning them takes under two seconds of CPU time, and listing a store of two thousand under one,
or, where the machine is too slow or too busy for that, a small multiple of work that takes turns with it: planning a
tenth of them, reading the same files."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tepo.common.files import content_hash
from tepo.config.compose import compose, to_dict
from tepo.store.run_id import RECIPE, identity, run_id
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


def test_listing_two_thousand_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = compose([f"store={tmp_path}"])
    made_of = identity(config)
    recipe = content_hash(made_of)
    manifest = json.dumps({"status": "finished", "recipe": RECIPE})
    for seed in range(2000):
        run = tmp_path / run_id(replace(config, seed=seed), recipe)
        os.makedirs(run / "eval" / "add3")
        stored = {"seed": seed, **made_of, "full": {**to_dict(config), "seed": seed}}
        for name, text in (("config.json", json.dumps(stored)), ("manifest.json", manifest)):
            (run / name).write_text(text)
        (run / "eval" / "add3" / "result.json").touch()
    started = time.process_time()
    listing(store=tmp_path, every=True)
    spent = time.process_time() - started
    assert capsys.readouterr().out.count("finished 36/36 1") == 2000
    assert spent < 1 or spent < 15 * reading(tmp_path)


def reading(store: Path) -> float:
    """CPU seconds of opening and parsing what a listing cannot do without."""
    started = time.process_time()
    for entry in os.scandir(store):
        for name in ("config.json", "manifest.json"):
            json.loads(Path(entry.path, name).read_bytes())
        assert os.path.exists(f"{entry.path}/eval/add3/result.json")
    return time.process_time() - started
