"""What must not change the gradient of any row: micro-batches, their order, the order of responses, padding, ranks;
and what else `tepo check-objective` asks."""

from pathlib import Path

import pytest
import torch

from tepo.objectives import load_objective
from tepo.objectives.testing.checks import CHECKS, distance, micro_batches, partitions, prepared_case, split, unsplit
from tests.invariants.ranks import run_ranks
from tests.invariants.rows import COMBINED, SPLIT_DEPENDENT, changed, covering, options, variants

ROWS = variants()
FEW = covering()


def test_few_compositions_reach_every_kind_and_option():
    every = {option for source in ROWS.values() for option in options(source)}
    assert every == {option for source in FEW.values() for option in options(source)}
    assert set(COMBINED) <= set(FEW)
    assert len(FEW) <= len(ROWS) / 2


@pytest.mark.parametrize("label", ROWS)
def test_every_row(label):
    """What `tepo check-objective` asks of a user's objective and what takes little: formulas, members, needs, NaN."""
    objective = load_objective(ROWS[label])
    for name in ("order", "padding", "nan", "baseline", "needs", "members", "explained"):
        assert CHECKS[name](objective) == "", name


@pytest.mark.parametrize("label", FEW)
def test_every_kind_and_option(label):
    """The other checks, which take a second a composition."""
    objective = load_objective(FEW[label])
    for name, check in CHECKS.items():
        assert check(objective) == "", name
    assert micro_batches(objective, torch.float32) == "", "float32"


@pytest.mark.parametrize("label", SPLIT_DEPENDENT)
def test_micro_batch_scope_depends_on_the_split(label):
    """`scope` and `over: micro_batch` do what peers do, for comparison: the gradient moves with the split."""
    objective = load_objective(changed(*SPLIT_DEPENDENT[label]))
    case, batch = prepared_case(objective, torch.float64)
    assert not objective.needs.prepass
    expected, _ = unsplit(objective, case, batch)
    gradient, _ = split(objective, case, batch, partitions(len(batch.lengths))[0])
    assert distance(gradient, expected) > 1e-3


@pytest.mark.parametrize("label", SPLIT_DEPENDENT)
def test_micro_batch_scope_on_one_micro_batch_is_the_mini_batch(label):
    name, changes = SPLIT_DEPENDENT[label]
    there = {
        axis: {key: value for key, value in settings.items() if value != "micro_batch"}
        for axis, settings in changes.items()
    }
    objective, ours = load_objective(changed(name, changes)), load_objective(changed(name, there))
    case, batch = prepared_case(objective, torch.float64)
    assert distance(unsplit(objective, case, batch)[0], unsplit(ours, case, batch)[0]) <= 1e-12


def test_two_ranks(tmp_path: Path):
    """Real processes over gloo: gradients summed over ranks, and the metrics, are those of one process."""
    found = run_ranks("tests.invariants.objective_ranks", tmp_path / "gradients.pt")
    assert set(found) == {*FEW, "tepo"}
    for label, (gradient, metrics) in found.items():
        objective = load_objective(FEW.get(label, label))
        case, batch = prepared_case(objective, torch.float64)
        expected, alone = unsplit(objective, case, batch)
        assert distance(gradient, expected) <= 1e-12, label
        assert metrics == pytest.approx(alone.means(), rel=1e-5, abs=1e-7), label
