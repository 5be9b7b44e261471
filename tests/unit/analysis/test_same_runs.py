from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tepo.analysis.same_runs import STEPS, same_runs
from tepo.common.errors import UserError
from tepo.studies.plan import Unit, make_plan
from tepo.studies.study import Study, parse_study
from tests.support.results import facts_of, finish, table_from_store
from tests.support.runs import write

STUDY = """
title: Twins
baseline: plain
rows:
  - {label: plain, objective: grpo_dapo}
  - {label: twin, objective: tis}
  - {label: other, objective: gspo}
scales:
  laptop:
    models: [laptop]
    seeds: [0, 1, 2]
    overrides: ["data.benchmarks=[add3]", train.steps=6]
    same_as: {twin: plain}
"""
REWARDS, ENTROPIES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8), (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)


def parsed(folder: Path, text: str = STUDY) -> Study:
    return parse_study(write(folder / "twins.yaml", text))


def trained(unit: Unit, rewards: Sequence[float], entropies: Sequence[float] = ENTROPIES) -> None:
    """A run that was measured, with these rewards and entropies at its first steps."""
    finish(unit, 0.5)
    unit.folder.metrics_file.unlink()
    for step, (reward, entropy) in enumerate(zip(rewards, entropies, strict=True), start=1):
        if step <= unit.config.train.steps:
            row = {"training/global_step": step, "critic/score/mean": reward, "actor/entropy": entropy}
            unit.folder.append_metrics(row)


def made(study: Study, store: Path, **twins: tuple[Sequence[float], Sequence[float]]) -> list[Unit]:
    """Units whose runs are those of the plain row, but for the rows named."""
    units = make_plan(study, "laptop", store=store)
    for unit in units:
        luck = 0.01 * unit.seed
        rewards, entropies = twins.get(unit.row.label, (REWARDS, ENTROPIES))
        if unit.row.label == "other":
            rewards = [0.1] * len(REWARDS)
        trained(unit, [reward + luck for reward in rewards], entropies)
    return units


def alike(study: Study, units: Sequence[Unit]) -> tuple[Mapping[str, str], Sequence[str]]:
    return same_runs(study, "laptop", units, facts_of(study, units))


def test_a_declared_twin_is_marked_until_rounding_parts_it(tmp_path: Path) -> None:
    study = parsed(tmp_path)
    late = ((*REWARDS[:STEPS], 0.1, 0.2), (*[one * (1 + 3e-5) for one in ENTROPIES[:STEPS]], 0.1, 0.1))
    units = made(study, tmp_path / "runs", twin=late)
    same_as, notes = alike(study, units)
    assert same_as == {"laptop/twin": "plain"}
    assert notes == []
    table = table_from_store(study, units)
    assert [row.cells[-1].text for row in table.blocks[0].rows if row.key == "laptop/twin"] == ["identical here"]


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_another_objective_at_a_small_rate_is_no_twin(seeds: tuple[int, ...], tmp_path: Path) -> None:
    """The first rollout precedes every update, and a few after it are the same too: the entropies are not."""
    study = parsed(tmp_path)
    small = (REWARDS, (ENTROPIES[0], *[one * (1 + 1e-4) for one in ENTROPIES[1:]]))
    units = made(study, tmp_path / "runs", twin=small)
    for unit in units:
        if unit.row.label == "twin" and unit.seed not in seeds:  # one seed that differs is enough
            trained(unit, [reward + 0.01 * unit.seed for reward in REWARDS])
    same_as, notes = alike(study, units)
    assert same_as == {}
    assert notes == ["Declared by `same_as:` to train as plain does, but their runs part within 4 steps: twin."]


def test_one_seed_or_too_few_steps_say_nothing(tmp_path: Path) -> None:
    study = parsed(tmp_path)
    units = [unit for unit in made(study, tmp_path / "runs") if unit.seed == 0]
    assert alike(study, units) == ({}, [])
    short = make_plan(study, "laptop", store=tmp_path / "short", overrides=["train.steps=3"])
    for unit in short:
        trained(unit, REWARDS)
    assert alike(study, short) == ({}, [])


def test_a_wrong_declaration_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'plain'") as error:
        parsed(tmp_path, STUDY.replace("{twin: plain}", "{twin: plan}"))
    assert "same_as" in str(error.value.where)
