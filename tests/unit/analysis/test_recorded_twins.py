from pathlib import Path

import pytest

from tepo.analysis.same_runs import same_runs
from tepo.studies.plan_studies import plan_all
from tepo.studies.planned_facts import read_facts

pytestmark = pytest.mark.disaster

TWINS = ("TIS, 0.5 to 2", "TIS by response, over its mean", "Geometric sequence mask", "Trust region masking")


def test_what_is_declared_is_so_until_rounding_parts_it(tmp_path: Path) -> None:
    planned, facts = read_facts(plan_all(["stability_more"], "laptop", store=tmp_path), "laptop", records=True)
    ((study, units),) = planned
    same_as, notes = same_runs(study, "laptop", units, facts)
    rates = ("5e-5", "1e-4", "2e-4", "4e-4")
    assert same_as == {f"laptop/{row}, learning_rate={rate}": "GRPO/DAPO" for rate in rates for row in TWINS}
    assert notes == [
        "Declared by `same_as:` to train as GRPO/DAPO does, but their runs part within 4 steps at "
        f"learning_rate=1e-3: {'; '.join(TWINS)}."
    ]
