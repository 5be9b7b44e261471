import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tepo.launch.local import command
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import DIGEST, identity
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import plan_all
from tepo.training.loop import train
from tepo.training.run import Run
from tests.integration.test_eval_vllm import DRAWN, GREEDY
from tests.support.commands import python, tepo
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


def trained(folder: Path, sampler: str) -> list[Unit]:
    """The units of the study, trained with the embedded sampler, whichever they name."""
    words = [*WORDS, f"sampler={sampler}"]
    ((_, units),) = plan_all(["mine"], "laptop", store=folder / "runs", overrides=words)
    for unit in units:
        if not unit.row.base:
            source = train(Run(small(folder / "trained", *unit.overrides, "sampler=torch")))
            shutil.copytree(source, unit.folder, dirs_exist_ok=True)
            (unit.folder / "config.json").unlink()
            made = {**unit.in_store.manifest(), "id": unit.id, DIGEST: None}
            unit.in_store.manifest_file.write_text(json.dumps(made))
            unit.in_store.create(unit.config, identity(unit.config))
    return units


def measured(unit: Unit) -> list[dict]:
    """Samples of both benchmarks without log-probs, which are as near as vLLM rounds."""
    rows = []
    for name in ("greedy", "drawn"):
        rows += pq.read_table(unit.in_store.evaluation(name) / "samples.parquet").to_pylist()
    return [{key: value for key, value in row.items() if key != "logprob"} for row in rows]


def named(units: list[Unit]) -> list[str]:
    """Options that name the units to `tepo eval`."""
    kinds = ["base" if unit.row.base else "train" for unit in units]
    return [f"--model={' '.join([kind, *unit.overrides])}" for kind, unit in zip(kinds, units, strict=True)]


@pytest.mark.vllm
def test_rows_are_measured_with_one_engine(folder: Path) -> None:
    units = trained(folder, "vllm")
    log = {"VLLM_LOGGING_LEVEL": "INFO", "PYTHONWARNINGS": "default"}  # else commands show none
    done = python("-m", "tepo_cli", "eval", *named(units), "--store", folder / "runs", "--quiet", **log)
    assert (done.stdout + done.stderr).count("Initializing a V1 LLM engine") == 1
    for unit in units:
        assert unit.done()
        assert [cost.benchmarks for cost in unit.in_store.costs()] == [2]
    together = [measured(unit) for unit in units]
    assert [row["response"] for row in together[1]] != [row["response"] for row in together[2]]
    shutil.rmtree(units[2].in_store.evaluations)
    tepo(*command(units[2])[4:])
    assert measured(units[2]) == together[2]
    assert list(units[2].folder.glob("checkpoints/*/README.md"))


def test_one_that_cannot_be_measured_leaves_the_others(folder: Path) -> None:
    """With the embedded sampler, whose results are equal to the bit."""
    units = trained(folder, "torch")
    runs = named(units)
    shutil.move(units[1].in_store.manifest_file, folder / "away.json")
    with units[0].in_store.lock("measure"):
        done = tepo("eval", *runs, "--store", folder / "runs", "--quiet", code=1)
    assert f"run {units[0].id}: another process has this run (measure)" in done.stderr
    assert f"run {units[1].id}: the run is not trained to its end" in done.stderr
    assert "2 runs of 3 not measured" in done.stderr
    assert [unit.in_store.measured() for unit in units] == [[], [], ["drawn", "greedy"]]
    shutil.move(folder / "away.json", units[1].in_store.manifest_file)
    tepo("eval", *runs, "--store", folder / "runs", "--quiet")
    last = RunFolder(units[1].folder)
    files = [last.evaluation("drawn") / name for name in ("samples.parquet", "result.json")]
    together = [file.read_bytes() for file in files]
    shutil.rmtree(last.evaluations)
    tepo(*command(units[1])[4:])
    assert [file.read_bytes() for file in files] == together
    assert json.loads(files[1].read_text())["samples"] == 4
