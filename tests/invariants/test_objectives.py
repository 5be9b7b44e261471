"""What must not change the gradient of any row: micro-batches, their order, the order of responses, padding, ranks."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tepo.objectives import Metrics, Objective, TokenBatch, load_objective
from tests.invariants.ranks import run_ranks
from tests.invariants.rows import SPLIT_DEPENDENT, changed, distance, gradient_of_part, prepared_case, variants
from tests.unit.objectives.case import Case, shuffled

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}
ROWS = variants()


def whole(objective: Objective, case: Case, batch: TokenBatch) -> tuple[torch.Tensor, Metrics]:
    return gradient_of_part(objective, case, batch, objective.prepare(batch, salt=3))


def split(objective: Objective, case: Case, batch: TokenBatch, parts: list[list[int]]) -> tuple[torch.Tensor, Metrics]:
    """The sum over micro-batches, with one plan, made without log-probs where the row says it needs none."""
    plan = objective.prepare(
        batch if objective.needs.prepass else replace(batch, logprobs=None, entropies=None, full_kl=None), salt=3
    )
    done = [gradient_of_part(objective, case, batch.select(part), plan.select(part)) for part in parts]
    metrics = done[0][1]
    for _, more in done[1:]:
        metrics = metrics + more
    return torch.stack([gradient for gradient, _ in done]).sum(0), metrics


def partitions(count: int) -> list[list[list[int]]]:
    """Micro-batches of 1, of 5, one and a rest, interleaved backwards, and with an empty one."""
    every = list(range(count))
    return [
        [[i] for i in every],
        [every[i : i + 5] for i in range(0, count, 5)],
        [every[:1], every[1:]],
        [every[::-2], every[-2::-2]],
        [every[7:], [], every[:7]],
    ]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("label", ROWS)
def test_micro_batches(label, dtype):
    objective = load_objective(ROWS[label])
    case, batch = prepared_case(objective, dtype)
    expected, metrics = whole(objective, case, batch)
    assert expected.norm() > 0
    for parts in partitions(len(batch.lengths)):
        gradient, added = split(objective, case, batch, parts)
        assert distance(gradient, expected) <= TOLERANCE[dtype], parts
        assert added.means() == pytest.approx(metrics.means(), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("label", ROWS)
def test_order_of_responses(label):
    objective = load_objective(ROWS[label])
    case, batch = prepared_case(objective, torch.float64)
    expected, _ = whole(objective, case, batch)
    other, places = shuffled(case, torch.randperm(len(batch.lengths), generator=torch.Generator().manual_seed(0)))
    gradient, _ = whole(objective, other, other.batch(objective))
    assert distance(gradient, expected[places]) <= 1e-12


@pytest.mark.parametrize(
    "label", ["grpo", "tepo", "gspo", "prefix_is", "clip_cov, many", "kl_cov, many", "steer", "gtpo_v2", "grpo_s_v2"]
)
def test_padding(label):
    """Padded tensors through a mask, with 3 or 40 columns of rubbish beside them."""
    objective = load_objective(ROWS[label])
    case, batch = prepared_case(objective, torch.float64)
    found = []
    for width in (int(case.lengths.max()) + 3, int(case.lengths.max()) + 40):
        mask = torch.arange(width) < case.lengths[:, None]
        values = {}
        for name in (
            "old_logprobs",
            "advantages",
            "logprobs",
            "entropies",
            "old_entropies",
            "initial_logprobs",
            "full_kl",
        ):
            padded = torch.full((len(case.lengths), width), torch.nan, dtype=torch.float64)
            values[name] = padded.masked_scatter(mask, getattr(batch, name))[mask]
        found.append(whole(objective, case, replace(batch, lengths=mask.sum(1), **values))[0])
    expected, _ = whole(objective, case, batch)
    assert torch.equal(found[0], expected)
    assert torch.equal(found[1], expected)


@pytest.mark.parametrize("label", SPLIT_DEPENDENT)
def test_micro_batch_scope_depends_on_the_split(label):
    """`scope` and `over: micro_batch` do what peers do, for comparison: the gradient moves with the split."""
    objective = load_objective(changed(*SPLIT_DEPENDENT[label]))
    case, batch = prepared_case(objective, torch.float64)
    assert not objective.needs.prepass
    expected, _ = whole(objective, case, batch)
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
    assert distance(whole(objective, case, batch)[0], whole(ours, case, batch)[0]) <= 1e-12


def test_two_ranks(tmp_path: Path):
    """Real processes over gloo: gradients summed over ranks, and the metrics, are those of one process."""
    found = run_ranks("tests.invariants.objective_ranks", tmp_path / "gradients.pt")
    assert set(found) == set(ROWS)
    for label, (gradient, metrics) in found.items():
        objective = load_objective(ROWS[label])
        case, batch = prepared_case(objective, torch.float64)
        expected, alone = whole(objective, case, batch)
        assert distance(gradient, expected) <= 1e-12, label
        assert metrics == pytest.approx(alone.means(), rel=1e-5, abs=1e-7), label
