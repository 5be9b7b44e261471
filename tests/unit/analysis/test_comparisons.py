"""Rows beside their baseline: which train as it does, and what differences their seeds can find."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tepo.analysis.same_runs import STEPS, same_runs
from tepo.analysis.study_power import study_power
from tepo.analysis.tables import read_samples, row_key
from tepo.evaluation.statistics.power import found_from, smallest, spread_of
from tepo.evaluation.statistics.samples import pair_rows
from tepo.store.facts import Facts
from tepo.studies.claims import read_claims, study_of
from tepo.studies.plan import Unit, make_plan
from tepo.studies.plan_studies import Planned, plan_all, plan_studies
from tepo.studies.planned_facts import read_facts
from tepo.studies.study import Study, parse_study
from tepo_cli.show_power import UNKNOWN, power_line
from tests.support.claims import text
from tests.support.results import facts_of, finish, table_from_store
from tests.support.runs import write

STUDY = """
title: Mine
baseline: plain
rows:
  - {label: base model, base: true}
  - {label: plain, objective: grpo_dapo}
  - {label: twin, objective: tis}
  - {label: other, objective: gspo}
scales:
  laptop: {models: [laptop], seeds: [0, 1, 2], overrides: ["data.benchmarks=[add3]", train.steps=6]}
"""


# the same runs --------------------------------------------------------------------------------------------------------
REWARDS, ENTROPIES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8), (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)


def declared(folder: Path) -> Study:
    return parse_study(write(folder / "twins.yaml", STUDY.replace("seeds:", "same_as: {twin: plain}, seeds:")))


def trained(unit: Unit, rewards: Sequence[float], entropies: Sequence[float] = ENTROPIES) -> None:
    """A run that was measured, with these rewards, moved by its seed, and entropies at its first steps."""
    finish(unit, 0.5)
    unit.folder.metrics_file.unlink()
    for step in range(unit.config.train.steps):
        row = {"critic/score/mean": rewards[step] + 0.01 * unit.seed, "actor/entropy": entropies[step]}
        unit.folder.append_metrics({"training/global_step": step + 1, **row})


def made(study: Study, store: Path, twin: tuple[Sequence[float], Sequence[float]]) -> list[Unit]:
    """Units whose runs are those of the plain row, or else differ by their rewards; the twin's as given."""
    units = make_plan(study, "laptop", store=store)
    rows = {"plain": (REWARDS, ENTROPIES), "twin": twin}
    for unit in units:
        trained(unit, *rows.get(unit.row.label, ([0.1] * 6, ENTROPIES)))
    return units


def alike(study: Study, units: Sequence[Unit]) -> tuple[Mapping[str, str], Sequence[str]]:
    return same_runs(study, "laptop", units, facts_of(study, units))


def test_a_declared_twin_is_marked_until_rounding_parts_it(tmp_path: Path) -> None:
    study = declared(tmp_path)
    late = ((*REWARDS[:STEPS], 0.1, 0.2), (*[one * (1 + 3e-5) for one in ENTROPIES[:STEPS]], 0.1, 0.1))
    units = made(study, tmp_path / "runs", late)
    assert alike(study, units) == ({"laptop/twin": "plain"}, [])
    table = table_from_store(study, units)
    assert [row.cells[-1].text for row in table.blocks[0].rows if row.key == "laptop/twin"] == ["identical here"]


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_another_objective_at_a_small_rate_is_no_twin(seeds: tuple[int, ...], tmp_path: Path) -> None:
    """The first rollout precedes every update, and a few after it are the same too: the entropies are not."""
    study = declared(tmp_path)
    units = made(study, tmp_path / "runs", (REWARDS, (ENTROPIES[0], *[one * (1 + 1e-4) for one in ENTROPIES[1:]])))
    for unit in units:
        if unit.row.label == "twin" and unit.seed not in seeds:  # one seed that differs is enough
            trained(unit, REWARDS)
    note = "Declared by `same_as:` to train as plain does, but their runs part within 4 steps: twin."
    assert alike(study, units) == ({}, [note])


def test_one_seed_or_too_few_steps_say_nothing(tmp_path: Path) -> None:
    study = declared(tmp_path)
    units = made(study, tmp_path / "runs", (REWARDS, ENTROPIES))
    assert alike(study, [unit for unit in units if unit.seed == 0]) == ({}, [])
    short = make_plan(study, "laptop", store=tmp_path / "short", overrides=["train.steps=3"])
    for unit in short:
        trained(unit, REWARDS)
    assert alike(study, short) == ({}, [])


def test_a_table_says_how_its_prompts_were_asked_and_how_far_few_seeds_scatter(tmp_path: Path) -> None:
    study = declared(tmp_path)
    rows = [{"problem": f"{i}+1=", "answer": i + 1, "persona": "Be brief."} for i in range(9)]
    data = write(tmp_path / "own.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    words = [f"data={data}", "data.fields.system=persona", "data.prompt=boxed", "data.benchmarks=[add3]"]
    for overrides, asked in ((words, ["persona"]), ([], [])):
        units = make_plan(study, "laptop", seeds=[0], store=tmp_path / "runs", overrides=overrides)
        notes = " ".join(table_from_store(study, units).notes)
        assert re.findall("system prompt of the column `(.*?)`", notes) == asked
        assert "At this scale single rows move by 3 points" in notes
    assert "move by" not in " ".join(table_from_store(study, make_plan(study, "laptop", store=tmp_path / "runs")).notes)


# power ----------------------------------------------------------------------------------------------------------------
@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planned:
    for name in ("mine", "again"):
        write(tmp_path / "experiments" / f"{name}.yaml", STUDY)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    return plan_all(["mine", "again"], "laptop", store=tmp_path / "runs")


def measured(planned: Planned, seeds: int = 3) -> Facts:
    """Two rows of four, under some of their seeds."""
    for unit in planned[0][1]:
        if unit.row.label in ("plain", "other") and unit.seed < seeds:
            finish(unit, 0.6 if unit.row.label == "other" else 0.45)
    return read_facts(planned)[1]


@pytest.mark.disaster
def test_the_family_counts_each_comparison_once_and_measured_ones_say_how_they_vary(planned: Planned) -> None:
    facts = measured(planned)
    power = study_power(planned, facts)
    assert power.family == 3  # the base model and two rows against the baseline, in both studies
    (one,) = power.measured
    units = [unit for unit in planned[0][1] if unit.row.label in ("plain", "other")]
    (pair,) = pair_rows(read_samples(units, facts), row_key(units[0]))
    expected = spread_of(pair.cells, pair.weights)
    assert (one.spread.seed, one.seeds) == (expected.seed, 3)
    points = 100 * smallest(found_from(expected.cautious(2), 3, 0.05 / 3))
    assert f"3 seeds find a difference of {points:.1f} points with 80%" in power_line(planned, facts)


@pytest.mark.disaster
def test_registered_claims_are_a_family_by_batches(tmp_path: Path) -> None:
    second = text(batch=2, start=200, two="{at_least: 2}", three="{at_least: 2}").removeprefix("claims:\n")
    claims = read_claims(write(tmp_path / "claims.yaml", text(one="{at_least: 2}") + second)).claims
    planned = plan_studies([study_of(claim) for claim in claims], "laptop", store=tmp_path / "runs")
    for unit in (unit for _, units in planned[:2] for unit in units if unit.seed % 100 < 3):
        finish(unit, 0.5 + 0.1 * unit.row.label.endswith("A"))
    power = study_power(planned, read_facts(planned)[1])
    assert power.family == 2
    assert {one.label.partition(":")[0]: one.family for one in power.measured} == {"laptop/one": 1, "laptop/two": 2}


@pytest.mark.disaster
def test_without_two_seeds_of_a_row_and_its_baseline_it_is_unknown(planned: Planned) -> None:
    facts = measured(planned, seeds=1)
    assert (study_power(planned, facts), power_line(planned, facts)) == (None, UNKNOWN)


@pytest.mark.disaster
def test_a_row_of_a_sweep_is_compared_at_its_own_setting(tmp_path: Path, planned: Planned) -> None:
    swept = STUDY.replace("title: Mine", "title: Mine\nvary: {train.learning_rate: [1e-4, 2e-4]}")
    write(tmp_path / "experiments" / "mine.yaml", swept)
    planned = plan_all(["mine"], "laptop", store=tmp_path / "runs")
    power = study_power(planned, measured(planned))
    assert power.family == 6
    names = [f"{row}, learning_rate={rate}" for rate in ("1e-4", "2e-4") for row in ("other", "plain")]
    assert [name for one in power.measured for name in (one.label, one.baseline)] == [f"laptop/{one}" for one in names]
