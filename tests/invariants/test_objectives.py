"""What must not change the gradient of any row: micro-batches, their order, the order of responses, and ranks."""

from pathlib import Path

import pytest
import torch

from tepo.formula.language import AVERAGES, FUNCTIONS, GIVEN, GROUPS
from tepo.objectives import load_objective
from tepo.objectives.check import check_objective, micro_batches, prepared_case, unsplit
from tepo.objectives.testing.case import distance
from tests.invariants.ranks import run_ranks
from tests.invariants.rows import CHANGES, covering, parts, variants

ROWS = variants()
FEW = covering()


def test_few_objectives_reach_every_name_and_function():
    reached = set().union(*map(parts, FEW.values()))
    assert reached == set().union(*map(parts, ROWS.values()))
    assert reached >= {*FUNCTIONS, *GIVEN} - {"N", "B"}  # which averages read
    assert reached >= {f"average {name}" for name in (*AVERAGES, GROUPS)}
    assert len(FEW) <= len(ROWS) / 3


@pytest.mark.parametrize("label", CHANGES)
def test_a_reading_passes_every_check(label: str):
    """Rows do in tests/unit/objectives/test_formula_check.py."""
    assert [check for check in check_objective(ROWS[label]) if check.wrong] == []


@pytest.mark.parametrize("label", FEW)
def test_float32_in_parts(label: str):
    assert micro_batches(FEW[label], torch.float32) == ""


def test_two_ranks(tmp_path: Path):
    """Real processes over gloo: gradients summed over ranks, and the metrics, are those of one process."""
    found = run_ranks("tests.invariants.objective_ranks", tmp_path / "gradients.pt")
    assert set(found) == {*FEW, "tepo"}
    for label, (gradient, metrics) in found.items():
        objective = FEW.get(label) or load_objective(label)
        expected, alone = unsplit(objective, *prepared_case(objective))
        assert distance(gradient, expected) <= 1e-12, label
        assert metrics == pytest.approx(alone.means(), rel=1e-5, abs=1e-7), label
