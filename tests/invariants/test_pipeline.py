"""Every row through the real batching pipeline:
micro-batch size, cut groups, the order of prompts and two ranks change nothing."""

from pathlib import Path

import pytest
import torch

from tepo.objectives.checks import distance
from tests.invariants.pipeline import WHOLE, make_groups, run, turned
from tests.invariants.ranks import run_ranks
from tests.invariants.rows import variants

ROWS = variants()


@pytest.fixture(scope="module")
def groups():
    return make_groups()


@pytest.mark.parametrize("label", ROWS)
def test_micro_batches_and_order(label, groups):
    expected, metrics, parts = run(ROWS[label], groups, WHOLE, torch.float64)
    assert parts == 2, "one micro-batch an update"
    assert all(gradient.norm() > 0 for gradient in expected)
    for budget, given in ((17, groups), (60, turned(groups))):
        gradients, found, parts = run(ROWS[label], given, budget, torch.float64)
        assert parts > 2
        assert distance(gradients[0], expected[0]) <= 1e-12, budget
        assert distance(gradients[1], expected[1]) <= 1e-12, budget
        assert found == pytest.approx(metrics, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("label", ROWS)
def test_float32(label, groups):
    expected, _, _ = run(ROWS[label], groups, WHOLE, torch.float32)
    for budget in (17, 60):
        gradients, _, _ = run(ROWS[label], groups, budget, torch.float32)
        assert distance(gradients[0], expected[0]) <= 1e-6, budget


@pytest.mark.parametrize("label", ["grpo_dapo", "tepo", "clip_cov, many", "kl_cov, many", "steer"])
def test_one_response_a_micro_batch(label, groups):
    expected, _, _ = run(ROWS[label], groups, WHOLE, torch.float64)
    gradients, _, parts = run(ROWS[label], groups, 1, torch.float64)
    assert parts == 2 * 20
    assert distance(gradients[0], expected[0]) <= 1e-12
    assert distance(gradients[1], expected[1]) <= 1e-12


def test_two_ranks(groups, tmp_path: Path):
    found = run_ranks("tests.invariants.pipeline_ranks", tmp_path / "gradients.pt")
    assert set(found) == set(ROWS)
    for label, (gradients, metrics) in found.items():
        expected, alone, _ = run(ROWS[label], groups, WHOLE, torch.float64)
        for number in range(2):
            assert distance(gradients[number], expected[number]) <= 1e-12, (label, number)
        assert metrics == pytest.approx(alone, rel=1e-5, abs=1e-7), label
