"""What the rule of `same_as:` finds among all recorded studies: the rows that are declared, and nothing else."""

from pathlib import Path

import pytest
from tepo.studies.records.read import recorded_names, with_records

from tepo.analysis.same_runs import same_runs
from tepo.studies.plan_studies import plan_all

pytestmark = pytest.mark.disaster

TWINS = ("TIS, 0.5 to 2", "TIS by response, over its mean", "Geometric sequence mask", "Trust region masking")


def test_the_recorded_studies_have_no_other_twins(tmp_path: Path) -> None:
    names = [name for name in recorded_names() if name != "claims"]
    planned = with_records(plan_all(names, "laptop", store=tmp_path), "laptop")
    for study, units in planned:
        found = same_runs(study, "laptop", units)
        declared = study.name == "stability_more"
        rates = ("5e-5", "1e-4", "2e-4", "4e-4") if declared else ()
        assert found.same_as == {f"laptop/{row}, learning_rate={rate}": "GRPO/DAPO" for rate in rates for row in TWINS}
        assert found.notes == (
            [
                "Declared by `same_as:` to train as GRPO/DAPO does, but their runs part within 4 steps at "
                f"learning_rate=1e-3: {'; '.join(TWINS)}."
            ]
            if declared
            else []
        ), study.name
