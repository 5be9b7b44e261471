"""What must not change the gradient of any row: micro-batches, their order, the order of responses, and ranks."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tepo.formula.language import AVERAGES, FUNCTIONS, GIVEN, GROUPS
from tepo.objectives import load_objective
from tepo.objectives.testing.case import distance, partitions, shuffled
from tepo.objectives.testing.simulated_ranks import SimulatedRank, on_ranks
from tests.invariants.mini_batch import SALT, gradient_of_part, prepared_case, split, unsplit
from tests.invariants.ranks import run_ranks
from tests.invariants.rows import covering, parts, variants

ROWS = variants()
FEW = covering()


def test_few_objectives_reach_every_name_and_function():
    reached = set().union(*map(parts, FEW.values()))
    assert reached == set().union(*map(parts, ROWS.values()))
    assert reached >= {*FUNCTIONS, *GIVEN} - {"N", "B"}  # which averages read
    assert reached >= {f"average {name}" for name in (*AVERAGES, GROUPS)}
    assert len(FEW) <= len(ROWS) / 3


def same(found: dict[str, float], expected: dict[str, float]) -> bool:
    return found == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("label", ROWS)
def test_no_split_no_order_and_no_rank_changes_a_gradient(label: str):
    objective = ROWS[label]
    case, batch = prepared_case(objective)
    expected, metrics = unsplit(objective, case, batch)
    assert expected.norm() > 0
    for shares in partitions(len(batch.lengths)):
        found, added = split(objective, case, batch, shares)
        assert distance(found, expected) <= 1e-12, f"{len(shares)} micro-batches"
        assert same(added.means(), metrics.means()), f"{len(shares)} micro-batches"
    order = torch.randperm(len(case.lengths), generator=torch.Generator().manual_seed(0))
    other, moved = shuffled(case, order)
    found, _ = unsplit(objective, other, other.batch(objective))
    assert distance(found, expected[moved]) <= 1e-12, "another order"


@pytest.mark.parametrize("label", ROWS)
def test_simulated_ranks(label: str):
    """Responses dealt to two ranks, of which one may have none; whole groups for the advantages."""
    objective = ROWS[label]
    case, batch = prepared_case(objective)
    expected, metrics = unsplit(objective, case, batch)
    places = case.group_ids.unique(return_inverse=True)[1]
    # every third response is rank 0's, or all are; so many groups are rank 1's
    for step, groups in ((3, 2), (1, 0)) if label in FEW else ((3, 2),):

        def of_a_rank(
            comm: SimulatedRank, step: int = step, groups: int = groups
        ) -> tuple[Tensor, dict, Tensor, Tensor]:
            mine, whole = prepared_case(objective)
            own = whole.select([i for i in range(len(whole.lengths)) if (i % step == 0) == (comm.rank == 0)])
            plan = objective.prepare(own, comm=comm, salt=SALT)
            part, found = gradient_of_part(objective, mine, own, plan)
            few, moved = shuffled(case, torch.nonzero((places < groups) == bool(comm.rank))[:, 0])
            return comm.all_sum(part), found.means(comm), objective.advantages(few.groups(), comm), moved

        for total, found, advantages, moved in on_ranks(of_a_rank):
            assert distance(total, expected) <= 1e-12, step
            assert same(found, metrics.means()), step
            assert distance(advantages, batch.advantages[moved]) <= 1e-12, step


@pytest.mark.parametrize("label", FEW)
def test_float32_in_parts(label: str):
    objective = FEW[label]
    case, batch = prepared_case(objective, torch.float32)
    expected, _ = unsplit(objective, case, batch)
    for shares in partitions(len(batch.lengths)):
        found, _ = split(objective, case, batch, shares)
        assert found.dtype == torch.float32
        assert distance(found, expected) <= 1e-6, f"{len(shares)} micro-batches"


def test_two_ranks(tmp_path: Path):
    """Real processes over gloo: gradients summed over ranks, and the metrics, are those of one process."""
    found = run_ranks("tests.invariants.objective_ranks", tmp_path / "gradients.pt")
    assert set(found) == {*FEW, "tepo"}
    for label, (gradient, metrics) in found.items():
        objective = FEW.get(label) or load_objective(label)
        expected, alone = unsplit(objective, *prepared_case(objective))
        assert distance(gradient, expected) <= 1e-12, label
        assert same(metrics, alone.means()), label
