import json
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.launch.run_units import spent
from tepo.store.cost import Cost
from tepo.store.find_run import costs
from tepo.studies.plan import make_plan
from tepo.studies.study import load_study
from tests.support.runs import write


def test_shares_over_distinct_runs_and_over_the_parts_of_a_resumed_one(tmp_path: Path) -> None:
    units = make_plan(load_study("panel-e"), "laptop", store=tmp_path)
    for unit in units[:2]:
        unit.folder.path.mkdir()
    assert spent({unit.id: unit.folder.costs() for unit in units}) == ""
    units[0].folder.add_cost(
        Cost("laptop", "grpo_dapo", 20, 0, cpu_s=50, training_s=46, measuring_s=0, tokens=1, core_s=45)
    )
    units[0].folder.add_cost(
        Cost("laptop", "grpo_dapo", 16, 7, cpu_s=40, training_s=30, measuring_s=6, tokens=1, core_s=30)
    )
    units[1].folder.add_cost(Cost("laptop", "tepo", 36, 7, cpu_s=10, training_s=6, measuring_s=2, tokens=1, core_s=5))
    assert spent({unit.id: unit.folder.costs() for unit in units[:2]}) == (
        "100 CPU seconds in 2 runs: 80.0% sampling, log-probs and updates, "
        "8.0% benchmarks (sampling and grading), 12.0% everything else"
    )


COST = Cost("laptop", "", steps=1, benchmarks=0, cpu_s=1, training_s=1, measuring_s=1, tokens=1)


@pytest.mark.parametrize("content", ['[{"data": "lap', '[{"who": 1}]', "7", json.dumps([vars(COST) | {"cpu_s": "x"}])])
def test_a_damaged_record_is_named(tmp_path: Path, content: str) -> None:
    write(tmp_path / "run/cost.json", content)
    with pytest.raises(UserError, match=r"damaged[^\0]*cost\.json[^\0]*move it away"):
        costs(tmp_path)
