import json
import shutil
from pathlib import Path

import pytest

from tepo.launch.local import command
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import plan_all
from tepo.training.loop import train
from tepo.training.run import Run
from tests.integration.test_eval_vllm import DRAWN, GREEDY
from tests.support.commands import tepo
from tests.support.runs import SMALL, small, write

pytestmark = [pytest.mark.slow, pytest.mark.disaster]
WORDS = (*SMALL, "train.steps=1", "data.benchmarks=[greedy,drawn]")
STUDY = """
title: rows
rows:
  - {label: untrained, base: true}
  - {label: gspo, objective: gspo, overrides: [train.learning_rate=1e-3]}
scales:
  laptop: {models: [laptop], seeds: [0, 1]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path / "evals/greedy.yaml", GREEDY)
    (tmp_path / "evals/drawn.yaml").write_text(DRAWN)
    write(tmp_path / "experiments/mine.yaml", STUDY)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    return tmp_path


def trained(folder: Path) -> list[Unit]:
    """The units of the study, trained and not measured."""
    ((_, units),) = plan_all(["mine"], "laptop", store=folder / "runs", overrides=WORDS)
    for unit in units:
        if not unit.row.base:
            assert train(Run(small(folder / "runs", *unit.overrides))) == unit.folder.path
    return units


def named(units: list[Unit]) -> list[str]:
    """Options that name the units to `tepo eval`."""
    kinds = ["base" if unit.row.base else "train" for unit in units]
    return [f"--model={' '.join([kind, *unit.overrides])}" for kind, unit in zip(kinds, units, strict=True)]


def test_one_that_cannot_be_measured_leaves_the_others(folder: Path) -> None:
    """With the embedded sampler, whose results are equal to the bit; with vLLM: test_eval_vllm.py."""
    units = trained(folder)
    runs = named(units)
    shutil.move(units[1].folder.manifest_file, folder / "away.json")
    with units[0].folder.lock("measure"):
        done = tepo("eval", *runs, "--store", folder / "runs", "--quiet", code=1)
    assert f"run {units[0].id}: another process has this run (measure)" in done.stderr
    assert f"run {units[1].id}: the run is not trained to its end" in done.stderr
    assert "2 runs of 3 not measured" in done.stderr
    assert [unit.folder.measured() for unit in units] == [[], [], ["drawn", "greedy"]]
    shutil.move(folder / "away.json", units[1].folder.manifest_file)
    tepo("eval", *runs, "--store", folder / "runs", "--quiet")
    last = units[1].folder
    files = [last.evaluation("drawn") / name for name in ("samples.parquet", "result.json")]
    together = [file.read_bytes() for file in files]
    shutil.rmtree(last.evaluations)
    tepo(*command(units[1])[4:])
    assert [file.read_bytes() for file in files] == together
    assert json.loads(files[1].read_text())["samples"] == 4
