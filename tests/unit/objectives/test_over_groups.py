"""What is taken over a group, a rollout or a mini-batch: advantages, and the tokens that a row selects. Splits and
ranks are asked by the checks of every row."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.objectives import Groups, Objective, TokenBatch, load_objective, names
from tepo.objectives.functions import draws, tail_tokens
from tepo.objectives.testing.case import make_case
from tests.unit.objectives.flat import by_hand, loss_of, tensor

SHARES = ("gtpo", "gtpo_clipped", "gtpo_v2", "grpo_s", "grpo_s_v2")  # told apart by entropies too
IN_THE_LOSS = {"reinforce_pp_no_group"}  # its advantage needs log-probs: the rollout hands over the reward


def groups(rewards: list[float], ids: list[int], lengths: list[int] | None = None, **more: Any) -> Groups:
    return Groups(tensor(*rewards), torch.tensor(ids), torch.tensor(lengths or [1] * len(ids)), **more)


def advantages(name: str, given: Groups, **changes: Any) -> list[float]:
    return load_objective(name, changes).advantages(given).tolist()


@pytest.mark.parametrize(
    "name", [name for name in names() if "eps" in load_objective(name).read and name not in IN_THE_LOSS]
)
def test_equal_rewards_and_groups_of_one_are_exactly_zero_without_eps(name):
    """0/0 is 0. With eps `alike` of tepo/objectives/check.py asks every row. 0.1 eight times has a mean that is not 0.1
    in floating point."""
    more = {"old_entropies": torch.full((18,), 0.5), "max_new_tokens": 9, "finished": torch.ones(9) > 0}
    more |= {"values": tensor(*[0.1] * 9)}  # as they are tracked: all alike
    given = groups([0.0 if name in SHARES else 0.1] * 9, [1] * 8 + [2], [2] * 9, **more)
    assert advantages(name, given, eps=0) == [0.0] * 18


def test_gpg_alpha_counts_valid_groups_and_verl_counts_rewards():
    """Two groups of four, one mixed with one success:
    the paper's alpha is 8/4, verl's 8/1 with {0, 1} and 1 with {-1, 1}."""
    verl, ids = {"A": "(R - mean_g(R))/mean_r(responses(R != 0))"}, [0] * 4 + [1] * 4
    zeros, signed = groups([1, 0, 0, 0] + [0] * 4, ids), groups([1, -1, -1, -1] + [-1] * 4, ids)
    for changes, of_zeros, of_signed in (({}, 1.5, 3.0), (verl, 6.0, 1.5)):
        assert advantages("gpg", zeros, **changes)[0] == pytest.approx(of_zeros)
        assert advantages("gpg", signed, **changes)[0] == pytest.approx(of_signed)
    assert advantages("gpg", groups([0, 0, 1, 1], [0, 0, 1, 1])) == [0.0] * 4, "without a valid group"


def test_gdpo_takes_named_rewards_one_by_one_with_their_weights():
    """Where the first differs by 1 and the second by 0.1, a sum would let the first decide. All are short."""
    named, part = tensor([1, 0.1], [0, 0], [1, 0], [0, 0.1]), 0.5 / math.sqrt(1 / 3)  # of what two of four have
    given = groups(named.mean(1).tolist(), [1] * 4, named=named, weights=(3, 1), max_new_tokens=10)
    total = tensor(4 * part, -4 * part, 2 * part, -2 * part)
    assert advantages("gdpo", given) == pytest.approx((total / total.std()).tolist(), rel=1e-4)
    with pytest.raises(UserError, match="a column for each weight"):
        groups([1] * 4, [1] * 4, named=named, weights=(1,))


# shares of entropy ----------------------------------------------------------------------------------------------------
ENTROPIES = torch.rand(10, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1


def shaped(old: Tensor, rewards: tuple[float, ...] = (1, 1, 0, 1), lengths: tuple[int, ...] = (3, 1, 2, 4)) -> Groups:
    return groups(list(rewards), [5] * len(rewards), list(lengths), old_entropies=old, max_new_tokens=4)


@pytest.mark.parametrize("name", SHARES)
def test_advantages_depend_on_proportions_of_entropies_alone(name):
    """Entropies of a nearly deterministic policy, 1e-9 nats say, are told apart like any others."""
    for rewards in ((1, 1, 0, 1), (0, 1, 0, 0)):
        expected = advantages(name, shaped(ENTROPIES, rewards))
        assert advantages(name, shaped(1e-9 * ENTROPIES, rewards)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_sure_tokens_stay_finite():
    """All successes sure at a position: equal shares, which keep the sum rule. A sure failure takes h_t alone."""
    for name in SHARES:
        assert all(map(math.isfinite, advantages(name, shaped(torch.zeros(10))))), name
    assert advantages("gtpo", shaped(tensor(0, 0), (1, 1), (1, 1)), A="share_t(H_old, R > 0)") == [1.0, 1.0]
    for name in ("gtpo_v2", "grpo_s_v2"):
        lost = advantages(name, shaped(tensor(0, 1), (0, 0), (1, 1)), A="f")
        assert lost == pytest.approx([-2.0, 0.0], abs=1e-6)
    lost = advantages("gtpo_v2", shaped(tensor(1e-3, 1), (0, 0), (1, 1)), A="f")
    assert lost == pytest.approx([-2000 / 1001, -2 / 1001], rel=1e-3)


def test_length_term_of_4_5_1():
    """L2 = 10, L1 = 2: continuous (T - 8)/2; as printed (T - 8)/10, then a jump to 1 beyond L2."""
    given = groups([1] * 4, [5] * 4, [8, 9, 10, 11], old_entropies=torch.ones(38), max_new_tokens=10)
    as_printed = {"P": "where(T > L, 1, clip((T - (1 - buffer)*L)/L, 0, 1))"}
    for changes, expected in (({}, [0, 0.5, 1, 1]), (as_printed, [0, 0.1, 0.2, 1])):
        found = advantages("gtpo_clipped", given, A="P*R", **changes)
        assert [found[place] for place in (0, 8, 17, 27)] == pytest.approx(expected)


# tokens that are selected ---------------------------------------------------------------------------------------------
def test_tail_tokens_leaves_out_the_largest_until_the_mean_is_at_most_the_bound():
    """Of 2 2 7 9 1 the fourth may not leave nor counts. A bound may be met; of two alike the larger tie goes."""
    among, ties = torch.tensor([True, True, True, False, True]), tensor(0, 1, 2, 3, 4)
    for bound, expected in ((3, [0, 0, 0, 0, 0]), (1.6, [0, 1, 1, 0, 0]), (0.5, [1, 1, 1, 0, 1])):
        assert tail_tokens(tensor(2, 2, 7, 9, 1), among, bound, ties, None).int().tolist() == expected


def test_draws_are_uniform_and_others_with_another_salt():
    batch = make_case(0, repeat=400).batch(load_objective("grpo_dapo"))
    number = draws(batch, 1)
    assert number.mean().item() == pytest.approx(0.5, abs=0.02)
    assert torch.histc(number, 10, 0, 1).min() > 0.08 * len(number)
    assert number.unique().shape == number.shape
    assert not torch.equal(draws(batch, 6), number)


def weights(objective: Objective, batch: TokenBatch, salt: int = 0) -> list[float]:
    """The line `v` of each token."""
    return loss_of(objective, batch, salt).tokens["weight"].tolist()


@pytest.mark.parametrize(("bounds", "drawn"), [({}, [1, 2]), ({"alpha": 1.25, "beta": 5.5}, [1])])
def test_clip_cov_draws_strictly_inside_its_bounds(bounds, drawn):
    """Log-probs less their mean of -1.75: 0.75, -2.25, -1.25, 2.75; covariances 0.75, 4.5, 1.25, 5.5. With bounds of
    1.25 and 5.5 the second alone is inside."""
    logprobs = tensor(-1, -4, -3, 1)
    batch = TokenBatch(logprobs, tensor(1, -2, -1, 2), torch.tensor([4]), logprobs, uid=torch.arange(1))
    objective = load_objective("clip_cov", {"share": 1, **bounds})
    left_out = objective.prepare(batch).values[objective.planned[-1].number]
    assert left_out.nonzero().flatten().tolist() == drawn


@pytest.mark.parametrize("least", [0.0, 0.1])
def test_steer_counts_the_largest_change_as_at_least_the_floor(least):
    """On-policy |Omega| = |A (1 - pi) (log pi + H)|, here 0.05 (1 - 1/e) and a third of it."""
    batch = by_hand([1.0, 1.0], [0.05, -0.05 / 3], old_entropies=tensor(2.0, 2.0))
    size = [0.05 * (1 - math.exp(-1)), 0.05 / 3 * (1 - math.exp(-1))]
    expected = [0.8 ** (x / max(size[0], least)) for x in size]
    assert weights(load_objective("steer", {"least": least}), batch) == pytest.approx(expected, rel=1e-9)


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
