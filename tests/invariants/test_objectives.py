"""What must not change the gradient of any row: micro-batches, their order, the order of responses, and ranks. In
float64 tests/unit/objectives/test_formula_check.py asks every row; over gloo ranks test_pipeline.py."""

import pytest
import torch

from tepo.formula.language import AVERAGES, FUNCTIONS, GIVEN, GROUPS
from tepo.objectives.check import micro_batches
from tests.invariants.rows import covering, parts, variants

ROWS = variants()
FEW = covering()


def test_few_objectives_reach_every_name_and_function():
    reached = set().union(*map(parts, FEW.values()))
    assert reached == set().union(*map(parts, ROWS.values()))
    assert reached >= {*FUNCTIONS, *GIVEN} - {"N", "B"}  # which averages read
    assert reached >= {f"average {name}" for name in (*AVERAGES, GROUPS)}
    assert len(FEW) <= len(ROWS) / 3


@pytest.mark.parametrize("label", FEW)
def test_float32_in_parts(label: str):
    assert micro_batches(FEW[label], torch.float32) == ""
