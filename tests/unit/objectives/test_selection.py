"""Selections: covariance, top k with ties over ranks, stateless draws, and what Clip-Cov leaves out."""

import math

import pytest
import torch

from tepo.objectives import TokenBatch, load_objective
from tepo.objectives.axes.selection import covariance, draws, top_tokens
from tepo.objectives.testing.case import make_case
from tests.invariants.rows import changed
from tests.unit.objectives.flat import by_hand, tensor


class Ranks:
    """Collectives over parts held in one process: what the other ranks would have sent."""

    def __init__(self, others: list[torch.Tensor]):
        self.others = list(others)

    def all_gather(self, value: torch.Tensor) -> list[torch.Tensor]:
        return [value, self.others.pop(0)]

    def all_sum(self, value: torch.Tensor) -> torch.Tensor:
        return value + self.others.pop(0)


def test_covariance_by_hand():
    logprobs, advantages = tensor(-1, -3, -2, -2), tensor(1, -1, 1, 3)
    assert covariance(logprobs, advantages, None).tolist() == [0.0, 2.0, 0.0, 0.0]


def test_covariance_takes_its_means_over_all_ranks():
    others = Ranks([tensor(-5.0 * 4, 8.0, 4.0)])  # four tokens there: log-probs sum to -20, advantages to 8
    found = covariance(tensor(-1.0, -3.0), tensor(1.0, -1.0), others)
    mean_log, mean_advantage = -24 / 6, 8 / 6
    assert found.tolist() == pytest.approx(
        [(-1 - mean_log) * (1 - mean_advantage), (-3 - mean_log) * (-1 - mean_advantage)]
    )


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, [0, 0, 1, 0, 0]), (2, [0, 0, 1, 0, 1]), (3, [1, 0, 1, 0, 1]), (4, [1, 1, 1, 0, 1]), (9, [1, 1, 1, 0, 1])],
)
def test_top_tokens_breaks_ties_by_the_smaller_draw(count, expected):
    """Scores 2 1 3 -inf 2; the first 2 has the larger draw. -inf is never chosen."""
    found = top_tokens(tensor(2, 1, 3, -torch.inf, 2), tensor(0.9, 0.1, 0.5, 0.1, 0.2), count, None)
    assert found.int().tolist() == expected


def test_top_tokens_over_ranks():
    """Two ranks, top 3 of six: this one holds the first and, by its draw, one of the two tied at 2."""
    ranks = Ranks([tensor(4, 2, 1), tensor(0.5, 0.8, 0.1)])
    found = top_tokens(tensor(5, 2, 0), tensor(0.3, 0.7, 0.2), 3, ranks)
    assert found.tolist() == [True, True, False]
    ranks = Ranks([tensor(5, 2, 0), tensor(0.3, 0.7, 0.2)])
    assert top_tokens(tensor(4, 2, 1), tensor(0.5, 0.8, 0.1), 3, ranks).tolist() == [True, False, False]


def test_draws_depend_on_salt_uid_and_position_alone():
    batch = make_case(0).batch(load_objective("clip_cov"))
    number = draws(batch, 5)
    chosen = [4, 0, 6]
    part = batch.select(chosen)
    starts = (batch.lengths.cumsum(0) - batch.lengths).tolist()
    expected = torch.cat([number[starts[i] : starts[i] + int(batch.lengths[i])] for i in chosen])
    assert torch.equal(draws(part, 5), expected)
    assert not torch.equal(draws(batch, 6), number)
    assert number.unique().shape == number.shape


def test_draws_are_uniform():
    batch = make_case(0, repeat=400).batch(load_objective("grpo_dapo"))
    number = draws(batch, 1)
    assert number.mean().item() == pytest.approx(0.5, abs=0.02)
    assert torch.histc(number, 10, 0, 1).min() > 0.08 * len(number)


def clip_cov(**settings):
    return load_objective(changed("clip_cov", {"weight": settings}))


def weights(objective, batch, salt: int = 0) -> list[float]:
    return objective.prepare(batch, salt=salt).weight.tolist()


def test_clip_cov_keeps_strictly_inside_its_bounds():
    """Covariances 1, 4, 1, 6 (means -2 and 0): bounds are strict, so only the 4 is a candidate of (1, 5)."""
    batch = by_hand([1.0] * 4, [1.0, -2.0, -1.0, 2.0], uid=torch.arange(1))
    batch = type(batch)(**{**batch.__dict__, "logprobs": tensor(-1, -4, -3, 1), "old_logprobs": tensor(-1, -4, -3, 1)})
    mean = batch.logprobs.mean().item()
    cov = ((batch.logprobs - mean) * batch.advantages).tolist()
    expected = [0.0 if 1 < c < 5 else 1.0 for c in cov]
    assert 0.0 in expected
    assert weights(clip_cov(fraction=1.0), batch) == expected


def test_clip_cov_leaves_tokens_the_clip_already_stopped():
    """A token past the clip has no gradient to lose: it must not use up the draw."""
    objective = load_objective(
        changed("clip_cov", {"surrogate": {"low": 0.2, "high": 0.2}, "weight": {"fraction": 1.0, "low": 0.0}})
    )
    batch = by_hand([3.0, 1.1, 0.1], [2.0, 2.0, -4.0], uid=torch.arange(1))
    assert weights(objective, batch) == [1.0, 0.0, 1.0]


def test_clip_cov_without_candidates_drops_nothing():
    assert weights(clip_cov(low=50.0, high=60.0), by_hand([1.0, 1.5], [1.0, -1.0], uid=torch.arange(1))) == [1.0, 1.0]


def test_clip_cov_drops_another_token_with_another_salt():
    case = make_case(3, repeat=4)
    objective = clip_cov(fraction=0.05, low=0.05)
    dropped = {
        tuple(i for i, w in enumerate(weights(objective, case.batch(objective), salt)) if w == 0) for salt in range(8)
    }
    assert all(len(places) == int(0.05 * 96) for places in dropped)
    assert len(dropped) == 8


def test_clip_cov_acts_on_the_first_mini_batch_and_stays_in_the_denominator():
    """On-policy, a dropped token's gradient is 0 and the others keep A / N."""
    case = make_case(3, drift=0.0)
    objective = clip_cov(fraction=0.1, low=0.05)
    batch = case.batch(objective)
    logprobs = batch.logprobs.detach().requires_grad_()
    batch = type(batch)(**{**batch.__dict__, "logprobs": logprobs})
    plan = objective.prepare(batch)
    (gradient,) = torch.autograd.grad(objective.loss(batch, plan).loss, logprobs)
    torch.testing.assert_close(gradient, -batch.advantages * plan.weight / len(logprobs))
    assert (plan.weight == 0).sum() == 2


def test_kl_cov_on_policy_is_the_policy_gradient():
    case = make_case(3, drift=0.0)
    found = []
    for name in ("kl_cov", "reinforce"):
        objective = load_objective(name)
        batch = case.batch(objective)
        found.append(torch.autograd.grad(objective.loss(batch, objective.prepare(batch)).loss, case.logits)[0])
    torch.testing.assert_close(*found)


def test_steer_spares_small_changes_and_holds_the_floor():
    case = make_case(5)
    objective = load_objective("steer")
    plan = objective.prepare(case.batch(objective))
    weight = plan.weight
    assert weight.min().item() == pytest.approx(0.8)
    assert weight.max() <= 1.0
    zero = make_case(5)
    zero.rewards = torch.ones_like(zero.rewards)
    assert torch.equal(objective.prepare(zero.batch(objective)).weight, torch.ones(24, dtype=torch.float64))


@pytest.mark.parametrize("scale_floor", [0.0, 0.02, 0.1])
def test_steer_counts_the_largest_change_as_at_least_the_floor(scale_floor):
    """On-policy |Omega| = |A (1 - pi) (log pi + H)|, here 0.05 (1 - 1/e) and a third of it."""
    objective = load_objective(changed("steer", {"weight": {"scale_floor": scale_floor}}))
    batch = by_hand([1.0, 1.0], [0.05, -0.05 / 3], old_entropies=tensor(2.0, 2.0))
    size = [0.05 * (1 - math.exp(-1)), 0.05 / 3 * (1 - math.exp(-1))]
    expected = [0.8 ** (x / max(size[0], scale_floor)) for x in size]
    assert weights(objective, batch) == pytest.approx(expected, rel=1e-9)
    assert (expected[0] == pytest.approx(0.8)) == (scale_floor < 0.03)


def test_steer_takes_sure_and_impossible_tokens_as_nearly_so():
    """pi and pi_old stay inside [1e-8, 1 - 1e-8], as in the released code: Omega is finite, and no weight is NaN."""
    objective = load_objective(changed("steer", {"weight": {"scale_floor": 0.0}}))
    logprobs = tensor(0.0, -100.0, -1.0)
    batch = TokenBatch(tensor(0.0, -100.0, -1.0), tensor(1, 1, 1), torch.tensor([3]), logprobs,
                       old_entropies=tensor(1, 1, 3))  # fmt: skip
    p = [1 - 1e-8, 1e-8, math.exp(-1)]
    size = [abs((1 - x) * (math.log(x) + h)) for x, h in zip(p, (1, 1, 3), strict=True)]
    assert weights(objective, batch) == pytest.approx([0.8 ** (x / max(size)) for x in size], rel=1e-6)


def test_steer_linear_takes_the_midpoint_when_all_are_equal():
    objective = load_objective(changed("steer", {"weight": {"shape": "linear", "floor": 0.8, "ceiling": 1.2}}))
    batch = by_hand([1.0, 1.0], [0.0, 0.0], old_entropies=tensor(1.0, 1.0))
    assert weights(objective, batch) == [1.0, 1.0]


def test_opsm_drops_bad_responses_that_became_improbable():
    """Means of log pi_old - log pi: log 2, 0, log 2 (a good one), -log 2; log 2 is 0.693."""
    batch = by_hand([0.25, 1.0, 2.0, 0.5, 0.5, 2.0], [-1.0, -1.0, -1.0, -1.0, 1.0, -1.0], [2, 2, 1, 1])
    for threshold, kept in ((0.5, [0, 0, 1, 1, 1, 1]), (0.7, [1] * 6)):
        objective = load_objective(changed("opsm", {"weight": {"threshold": threshold}}))
        assert objective.loss(batch, objective.prepare(batch)).tokens["weight"].tolist() == kept


def test_top_entropy_keeps_the_share_of_largest_entropy():
    entropies = tensor(0.1, 2.0, 0.3, 1.5, 0.2)
    batch = by_hand([1.0] * 5, [1.0] * 5, [3, 2], entropies=entropies, uid=torch.arange(2))
    for fraction, kept in ((0.2, [0, 1, 0, 0, 0]), (0.5, [0, 1, 0, 1, 0]), (0.0, [0, 1, 0, 0, 0]), (1.0, [1] * 5)):
        objective = load_objective(changed("top_entropy", {"weight": {"fraction": fraction}}))
        assert weights(objective, batch) == kept


def test_top_entropy_over_kept_tokens_is_a_mean_over_these():
    entropies = tensor(0.1, 2.0, 0.3, 1.5, 0.2)
    batch = by_hand(
        [1.0, 1.1, 0.9, 1.2, 1.3], [1.0, 2.0, 3.0, -4.0, 5.0], [3, 2], entropies=entropies, uid=torch.arange(2)
    )
    objective = load_objective(changed("top_entropy_v2", {"weight": {"fraction": 0.5}}))
    assert weights(objective, batch) == [0, 2.5, 0, 2.5, 0]
    assert objective.loss(batch, objective.prepare(batch)).loss.item() == pytest.approx(-(2.2 - 4.8) / 2)


def test_ties_stay_by_uid_and_then_by_position():
    """Responses 7, 2**62 and 5, in that order in the batch; four of six tokens tie, and three of all stay."""
    entropies, uid = tensor(1.0, 1.0, 1.0, 2.0, 0.5, 1.0), torch.tensor([7, 2**62, 5])
    batch = by_hand([1.0] * 6, [1.0] * 6, [2, 2, 2], entropies=entropies, uid=uid)
    objective = load_objective(changed("top_entropy_v2", {"weight": {"fraction": 0.5}}))
    for salt in range(3):
        assert [value > 0 for value in weights(objective, batch, salt)] == [True, False, False, True, False, True]
