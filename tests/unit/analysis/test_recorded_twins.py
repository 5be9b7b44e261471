"""What the rule of `same_as:` finds among all recorded studies: the rows that are declared, and nothing else."""

from pathlib import Path

import pytest

from tepo.analysis.same_runs import same_runs
from tepo.studies.plan_studies import plan_all
from tepo.studies.planned_facts import read_facts
from tepo.studies.record_runs import recorded_names

pytestmark = pytest.mark.disaster

TWINS = ("TIS, 0.5 to 2", "TIS by response, over its mean", "Geometric sequence mask", "Trust region masking")


def test_the_recorded_studies_have_no_other_twins(tmp_path: Path) -> None:
    names = [name for name in recorded_names() if not name.startswith("claims")]
    planned, facts = read_facts(plan_all(names, "laptop", store=tmp_path), "laptop", records=True)
    for study, units in planned:
        found = same_runs(study, "laptop", units, facts)
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
