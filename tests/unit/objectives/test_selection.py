"""Splits and ranks are asked by the checks of every row."""

import math
from dataclasses import replace

import pytest
import torch

from tepo.objectives import Objective, TokenBatch, load_objective
from tepo.objectives.functions import draws, tail_tokens, top_tokens
from tepo.objectives.testing.case import LENGTHS, make_case
from tests.unit.objectives.flat import by_hand, tensor


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, [0, 0, 1, 0, 0]), (2, [0, 0, 1, 0, 1]), (3, [1, 0, 1, 0, 1]), (4, [1, 1, 1, 0, 1]), (9, [1, 1, 1, 0, 1])],
)
def test_top_tokens_breaks_ties_by_the_smaller_draw(count, expected):
    """Scores 2 1 3 -inf 2; the first 2 has the larger draw. -inf is never chosen."""
    found = top_tokens(tensor(2, 1, 3, -torch.inf, 2), tensor(0.9, 0.1, 0.5, 0.1, 0.2), count, None)
    assert found.int().tolist() == expected


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (9, [0, 0, 0, 0, 0]),
        (3, [0, 0, 0, 0, 0]),  # the mean of 1 2 2 7, and a bound may be met
        (2.9, [0, 0, 1, 0, 0]),
        (1.6, [0, 1, 1, 0, 0]),  # of two alike, that of the larger tie
        (1, [1, 1, 1, 0, 0]),
        (0.5, [1, 1, 1, 0, 1]),  # no one is left
    ],
)
def test_tail_tokens_leaves_out_the_largest_until_the_mean_is_at_most_the_bound(bound, expected):
    """Values 2 2 7 9 1, of which the fourth may not leave and does not count."""
    among = torch.tensor([True, True, True, False, True])
    found = tail_tokens(tensor(2, 2, 7, 9, 1), among, bound, tensor(0, 1, 2, 3, 4), None)
    assert found.int().tolist() == expected


def test_tail_tokens_keeps_what_is_no_number():
    values, among, ties = tensor(1, torch.nan, torch.inf), torch.ones(3, dtype=torch.bool), tensor(0, 1, 2)
    assert tail_tokens(values, among, 5.0, ties, None).tolist() == [False, False, True]
    assert tail_tokens(values, among, 0.5, ties, None).tolist() == [True, False, True]
    assert tail_tokens(values, ~among, 5.0, ties, None).tolist() == [False] * 3


def test_draws_are_uniform_and_others_with_another_salt():
    batch = make_case(0, repeat=400).batch(load_objective("grpo_dapo"))
    number = draws(batch, 1)
    assert number.mean().item() == pytest.approx(0.5, abs=0.02)
    assert torch.histc(number, 10, 0, 1).min() > 0.08 * len(number)
    assert number.unique().shape == number.shape
    assert not torch.equal(draws(batch, 6), number)


# rows -----------------------------------------------------------------------------------------------------------------
def weights(objective: Objective, batch: TokenBatch, salt: int = 0) -> list[float]:
    """The line `v` of each token."""
    if batch.logprobs is not None and not batch.logprobs.requires_grad:
        batch = replace(batch, logprobs=batch.logprobs.clone().requires_grad_())
    return objective.loss(batch, objective.prepare(batch, salt=salt)).tokens["weight"].tolist()


def drawn(objective: Objective, batch: TokenBatch, salt: int = 0) -> list[int]:
    """The tokens that Clip-Cov leaves out."""
    plan = objective.prepare(batch, salt=salt)
    return plan.values[objective.planned[-1].number].nonzero().flatten().tolist()


def test_clip_cov_draws_strictly_inside_its_bounds():
    """Log-probs less their mean of -1.75: 0.75, -2.25, -1.25, 2.75; covariances 0.75, 4.5, 1.25, 5.5. With bounds of
    1.25 and 5.5 the second alone is inside."""
    batch = by_hand([1.0] * 4, [1.0, -2.0, -1.0, 2.0], uid=torch.arange(1))
    batch = replace(batch, logprobs=tensor(-1, -4, -3, 1), old_logprobs=tensor(-1, -4, -3, 1))
    assert drawn(load_objective("clip_cov", {"share": 1}), batch) == [1, 2]
    assert drawn(load_objective("clip_cov", {"share": 1, "alpha": 1.25, "beta": 5.5}), batch) == [1]


@pytest.mark.parametrize("least", [0.0, 0.02, 0.1])
def test_steer_counts_the_largest_change_as_at_least_the_floor(least):
    """On-policy |Omega| = |A (1 - pi) (log pi + H)|, here 0.05 (1 - 1/e) and a third of it."""
    batch = by_hand([1.0, 1.0], [0.05, -0.05 / 3], old_entropies=tensor(2.0, 2.0))
    size = [0.05 * (1 - math.exp(-1)), 0.05 / 3 * (1 - math.exp(-1))]
    expected = [0.8 ** (x / max(size[0], least)) for x in size]
    assert weights(load_objective("steer", {"least": least}), batch) == pytest.approx(expected, rel=1e-9)
    assert (expected[0] == pytest.approx(0.8)) == (least < 0.03)


def test_steer_takes_sure_and_impossible_tokens_as_nearly_so():
    """pi and pi_old stay inside [1e-8, 1 - 1e-8], as in the released code: Omega is finite, and no weight is NaN."""
    logprobs = tensor(0.0, -100.0, -1.0)
    batch = TokenBatch(logprobs, tensor(1, 1, 1), torch.tensor([3]), logprobs, old_entropies=tensor(1, 1, 3))
    p = [1 - 1e-8, 1e-8, math.exp(-1)]
    size = [abs((1 - x) * (math.log(x) + h)) for x, h in zip(p, (1, 1, 3), strict=True)]
    found = weights(load_objective("steer", {"least": 0}), batch)
    assert found == pytest.approx([0.8 ** (x / max(size)) for x in size], rel=1e-9)


def test_ties_stay_by_uid_and_then_by_position():
    """Responses 7, 2**62 and 5, in that order in the batch; four of six tokens tie, and three of all stay."""
    entropies, uid = tensor(1.0, 1.0, 1.0, 2.0, 0.5, 1.0), torch.tensor([7, 2**62, 5])
    batch = by_hand([1.0] * 6, [1.0] * 6, [2, 2, 2], entropies=entropies, uid=uid)
    objective = load_objective("top_entropy_v2", {"share": 0.5})
    for salt in range(3):
        assert [value > 0 for value in weights(objective, batch, salt)] == [True, False, False, True, False, True]


@pytest.mark.parametrize(("keep", "sizes"), [("", (3, 2, 3)), ("finished", (3, 2, 2))])
def test_of_a_group_in_the_mini_batch(keep, sizes):
    """Sums and the largest of each group by hand; empty responses (the fourth) and filtered ones (the seventh) are not
    in them."""
    case, lines = make_case(1), {"n": "sum_gb(T > 0)", "s": "sum_i(d)", "J": "exp(d)*A*n*sum_gb(s)*max_gb(-s)"}
    objective = load_objective("grpo_dapo", lines | {"keep": keep})
    batch = case.batch(objective)
    values = [value for value in objective.prepare(batch).values.values() if value.dim()]
    sums = [part.sum().item() for part in (batch.logprobs - batch.old_logprobs).split(batch.lengths.tolist())]
    for size, members in zip(sizes, ([0, 1, 2], [4, 5], [7, 8] if keep else [6, 7, 8]), strict=True):
        token = sum(LENGTHS[: members[0]])
        expected = {size, sum(sums[i] for i in members), max(-sums[i] for i in members)}
        assert sorted(value[token].item() for value in values) == pytest.approx(sorted(expected))
