import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.objectives import Groups, load_objective, names
from tests.unit.objectives.flat import tensor

SHARES = ("gtpo", "gtpo_clipped", "gtpo_v2", "grpo_s", "grpo_s_v2")  # told apart by entropies too


def groups(rewards: list[float], ids: list[int], lengths: list[int] | None = None, **more: Any) -> Groups:
    return Groups(tensor(*rewards), torch.tensor(ids), torch.tensor(lengths or [1] * len(ids)), **more)


def advantages(name: str, given: Groups, **changes: Any) -> list[float]:
    return load_objective(name, changes).advantages(given).tolist()


IN_THE_LOSS = {"reinforce_pp_no_group"}  # its advantage needs log-probs: the rollout hands over the reward


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
    verl, plain = {"A": "(R - mean_g(R))/mean_r(responses(R != 0))"}, {"A": "R - mean_g(R)"}
    ids = [0] * 4 + [1] * 4
    zeros, signed = groups([1, 0, 0, 0] + [0] * 4, ids), groups([1, -1, -1, -1] + [-1] * 4, ids)
    for changes, of_zeros, of_signed in (({}, 1.5, 3.0), (verl, 6.0, 1.5), (plain, 0.75, 1.5)):
        assert advantages("gpg", zeros, **changes)[0] == pytest.approx(of_zeros)
        assert advantages("gpg", signed, **changes)[0] == pytest.approx(of_signed)
    assert advantages("gpg", groups([0, 0, 1, 1], [0, 0, 1, 1])) == [0.0] * 4, "without a valid group"


PART = 0.5 / math.sqrt(1 / 3)  # of a reward that two of four have


def test_gdpo_takes_named_rewards_one_by_one_with_their_weights():
    """Where the first differs by 1 and the second by 0.1, a sum would let the first decide. All are short."""
    named = tensor([1, 0.1], [0, 0], [1, 0], [0, 0.1])
    given = groups(named.mean(1).tolist(), [1] * 4, named=named, weights=(3, 1), max_new_tokens=10)
    total = tensor(4 * PART, -4 * PART, 2 * PART, -2 * PART)
    assert advantages("gdpo", given) == pytest.approx((total / total.std()).tolist(), rel=1e-4)
    with pytest.raises(UserError, match="a column for each weight"):
        groups([1] * 4, [1] * 4, named=named, weights=(1,))


# shares of entropy ----------------------------------------------------------------------------------------------------
LENGTHS, REWARDS = [3, 1, 2, 4], [1, 1, 0, 1]  # successes: 0, 1, 3
places = torch.tensor([0, 1, 2, 0, 0, 1, 0, 1, 2, 3])
SHARE = {"A": "share_t(H_old, R > 0)"}


def entropies() -> Tensor:
    return torch.rand(10, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1


def shaped(old: Tensor, rewards: list[float] = REWARDS, lengths: list[int] = LENGTHS) -> Groups:
    return groups(rewards, [5] * len(rewards), lengths, old_entropies=old, max_new_tokens=4)


def test_token_shares_conserve_the_reward_at_each_position():
    """The shaped rewards of the successes still being generated at t add up to (1 + alpha) d_t (3.5.1)."""
    reward = load_objective("gtpo", {"A": "u"}).advantages(shaped(entropies()))
    for t, alive in enumerate([3, 2, 2, 1]):
        assert reward[places == t].sum().item() == pytest.approx(1.1 * alive, abs=1e-6)


@pytest.mark.parametrize("name", SHARES)
def test_advantages_depend_on_proportions_of_entropies_alone(name):
    """Entropies of a nearly deterministic policy, 1e-9 nats say, are told apart like any others."""
    for rewards in (REWARDS, [0, 1, 0, 0]):
        expected = advantages(name, shaped(entropies(), rewards))
        assert advantages(name, shaped(1e-9 * entropies(), rewards)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_sure_tokens_stay_finite():
    """All successes sure at a position: equal shares, which keep the sum rule. A sure failure takes h_t alone."""
    for name in SHARES:
        assert all(map(math.isfinite, advantages(name, shaped(torch.zeros(10))))), name
    assert advantages("gtpo", shaped(tensor(0, 0), [1, 1], [1, 1]), **SHARE) == [1.0, 1.0]
    lost = shaped(tensor(0, 1), [0, 0], [1, 1])
    assert advantages("gtpo_v2", lost, A="f") == pytest.approx([-2.0, 0.0], abs=1e-6)
    assert advantages("grpo_s_v2", lost, A="f") == pytest.approx([-2.0, 0.0], abs=1e-6)
    lost = shaped(tensor(1e-3, 1), [0, 0], [1, 1])
    assert advantages("gtpo_v2", lost, A="f") == pytest.approx([-2000 / 1001, -2 / 1001], rel=1e-3)


def test_length_term_of_4_5_1():
    """L2 = 10, L1 = 2: continuous (T - 8)/2; as printed (T - 8)/10, then a jump to 1 beyond L2."""
    given = groups([1] * 4, [5] * 4, [8, 9, 10, 11], old_entropies=torch.ones(38), max_new_tokens=10)
    places = [0, 8, 17, 27]
    for printed, expected in (
        ({}, [0, 0.5, 1, 1]),
        ({"P": "where(T > L, 1, clip((T - (1 - buffer)*L)/L, 0, 1))"}, [0, 0.1, 0.2, 1]),
    ):
        found = advantages("gtpo_clipped", given, A="P*R", **printed)
        assert [found[place] for place in places] == pytest.approx(expected)
