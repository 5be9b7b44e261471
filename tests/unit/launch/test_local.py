"""Which units of a study share a process, and that the command of several composes the same runs."""

from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.launch.local import Batch, batch_command, batches
from tepo.store.run_folder import RunFolder
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import plan_studies
from tepo.studies.study import parse_study
from tepo_cli.train_run import compose_one

STUDY = """
title: x
rows:
  - {label: base, base: true}
  - {label: a, objective: gspo}
  - {label: longer, objective: gspo, overrides: [train.max_new_tokens=50]}
  - {label: adapters, objective: gspo, overrides: [model.lora_rank=4]}
  - {label: embedded, objective: gspo, overrides: [sampler=torch]}
scales:
  laptop: {models: [laptop], seeds: [0, 1], overrides: [train.steps=2, sampler=vllm]}
"""


def planned(folder: Path, *, trained: bool = True) -> list[Unit]:
    (folder / "mine.yaml").write_text(STUDY)
    ((_, units),) = plan_studies([parse_study(folder / "mine.yaml")], "laptop", store=folder / "runs")
    for unit in units:
        if trained and unit.row.objective is not None:
            unit.in_store.create(unit.config)
            unit.in_store.mark("finished", steps=2)
    return units


def names(chosen: list[Batch]) -> list[list[str]]:
    return [[f"{unit.row.name} {unit.seed}" for unit in batch] for batch in chosen]


def test_trained_units_of_one_engine_share_a_process(tmp_path: Path) -> None:
    units = planned(tmp_path)
    alone = [["embedded 0"], ["embedded 1"]]
    assert names(batches(units, 1)) == [
        ["base 0", "a 0", "a 1", "adapters 0", "adapters 1"],
        ["longer 0", "longer 1"],
        *alone,
    ]
    assert names(batches(units, 2)) == [
        ["base 0", "a 1", "adapters 1"],
        ["a 0", "adapters 0"],
        ["longer 0"],
        ["longer 1"],
        *alone,
    ]


def test_units_that_are_to_be_trained_have_a_process_each(tmp_path: Path) -> None:
    units = planned(tmp_path, trained=False)
    assert batches(units, 1) == [(unit,) for unit in units]


def test_the_command_of_several_names_the_same_runs(tmp_path: Path) -> None:
    batch = batches(planned(tmp_path), 1)[0]
    *_, option, store = batch_command(batch)[: -2 * len(batch)]
    assert (option, store) == ("--store", str(tmp_path / "runs"))
    for unit, words in zip(batch, batch_command(batch)[1 - 2 * len(batch) :: 2], strict=True):
        config, trained = compose_one(words, Path(store))
        assert trained == (unit.row.objective is not None)
        assert (RunFolder.of(config) if trained else RunFolder.of_base(config)) == unit.in_store


@pytest.mark.parametrize("words", ["", "gspo", "'train seed=1"])
def test_words_that_are_no_run(words: str) -> None:
    with pytest.raises(UserError, match="run"):
        compose_one(words, None)
