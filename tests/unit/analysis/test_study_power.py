from pathlib import Path

import pytest

from tepo.analysis.study_power import study_power
from tepo.analysis.tables import read_samples, row_key
from tepo.evaluation.statistics.power import found_from, smallest, spread_of
from tepo.evaluation.statistics.samples import pair_rows
from tepo.store.facts import Facts
from tepo.studies.claims import read_claims, study_of
from tepo.studies.plan_studies import Planned, plan_all, plan_studies
from tepo.studies.planned_facts import read_facts
from tepo_cli.show_power import UNKNOWN, power_line
from tests.support.claims import text
from tests.support.results import finish
from tests.support.runs import write

pytestmark = pytest.mark.disaster

STUDY = """\
title: mine
baseline: GRPO/DAPO
rows:
  - {label: base model, base: true}
  - {label: GRPO/DAPO, objective: grpo_dapo}
  - {label: GSPO, objective: gspo}
  - {label: TEPO, objective: tepo}
scales:
  laptop: {models: [laptop], seeds: [0, 1, 2], overrides: [train.steps=2, "data.benchmarks=[add3]"]}
"""


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planned:
    for name in ("mine", "again"):
        write(tmp_path / "experiments" / f"{name}.yaml", STUDY)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    return plan_all(["mine", "again"], "laptop", store=tmp_path / "runs")


def measure(planned: Planned, *labels: str, seeds: int = 3) -> None:
    for unit in planned[0][1]:
        if unit.row.label in labels and unit.seed < seeds:
            finish(unit, {"GSPO": 0.6, "TEPO": 0.5}.get(unit.row.label, 0.45))


def facts(planned: Planned) -> Facts:
    return read_facts(planned)[1]


def test_the_family_counts_each_comparison_once_and_measured_ones_say_how_they_vary(planned: Planned) -> None:
    measure(planned, "GRPO/DAPO", "GSPO")
    power = study_power(planned, facts(planned))
    assert power.family == 3  # the base model, GSPO and TEPO against GRPO/DAPO, in both studies
    (one,) = power.measured
    units = [unit for unit in planned[0][1] if unit.row.label in ("GRPO/DAPO", "GSPO")]
    (pair,) = pair_rows(read_samples(units, facts(planned)), row_key(units[0]))
    expected = spread_of(pair.cells, pair.weights)
    assert one.spread.seed == expected.seed
    assert one.seeds == 3
    found = 100 * smallest(found_from(expected.cautious(2), 3, 0.05 / 3))
    assert f"3 seeds find a difference of {found:.1f} points with 80%" in power_line(planned, facts(planned))


def test_registered_claims_are_a_family_by_batches(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(
        text(one="{at_least: 2}")
        + text(batch=2, start=200, two="{at_least: 2}", three="{at_least: 2}").removeprefix("claims:\n")
    )
    planned = plan_studies([study_of(claim) for claim in read_claims(path).claims], "laptop", store=tmp_path / "runs")
    for _, units in planned[:2]:
        for unit in units:
            if unit.seed % 100 < 3:
                finish(unit, 0.5 + 0.1 * unit.row.label.endswith("A"))
    power = study_power(planned, facts(planned))
    assert power.family == 2
    assert {one.label.partition(":")[0]: one.family for one in power.measured} == {"laptop/one": 1, "laptop/two": 2}


def test_without_two_seeds_of_a_row_and_its_baseline_it_is_unknown(planned: Planned) -> None:
    measure(planned, "GRPO/DAPO", "GSPO", seeds=1)
    assert study_power(planned, facts(planned)) is None
    assert power_line(planned, facts(planned)) == UNKNOWN


def test_a_row_of_a_sweep_is_compared_at_its_own_setting(tmp_path: Path, planned: Planned) -> None:
    swept = STUDY.replace("title: mine", "title: mine\nvary: {train.learning_rate: [1e-4, 2e-4]}")
    (tmp_path / "experiments" / "mine.yaml").write_text(swept)
    planned = plan_all(["mine"], "laptop", store=tmp_path / "runs")
    measure(planned, "GRPO/DAPO", "GSPO")
    power = study_power(planned, facts(planned))
    assert power.family == 6
    names = [f"{row}, learning_rate={rate}" for rate in ("1e-4", "2e-4") for row in ("GSPO", "GRPO/DAPO")]
    assert [name for one in power.measured for name in (one.label, one.baseline)] == [f"laptop/{one}" for one in names]
