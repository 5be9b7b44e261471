from pathlib import Path

import pytest

from tepo.planning.laptop_cost import closed_form_seconds
from tepo.studies.plan_studies import plan_all
from tepo.studies.planned_facts import read_facts
from tepo.training.run import Run


@pytest.mark.parametrize("study", ["lengths", "stability", "long_sparse", "updates"])
def test_a_run_on_record_costs_what_the_closed_form_says_to_a_factor_of_four(study: str, tmp_path: Path) -> None:
    planned, facts = read_facts(plan_all([study], "laptop", store=tmp_path), records=True)
    spent = {run.run: sum(cost.cpu_s for cost in run.costs) for run in facts.runs.itertuples() if run.costs}
    units = {unit.config.data.name: unit for _, part in planned for unit in part if unit.id in spent}
    assert units
    for unit in units.values():
        said = closed_form_seconds(Run(unit.config), unit.config.train.steps, measured=True)
        assert 1 / 4 < said / spent[unit.id] < 4, (unit.label, said, spent[unit.id])
