"""Advantages with another baseline or scale: figures by hand."""

import math

import pytest
import torch

from tepo.common.errors import UserError
from tepo.objectives import Groups, load_objective
from tests.invariants.rows import changed
from tests.unit.objectives.flat import tensor
from tests.unit.objectives.test_advantage import advantages, groups


def test_max_rl_weighs_a_rare_success_more():
    """One of four: (1 - 1/4) / (1/4) = 3; three of four: 1/3. No success: 0."""
    found = advantages("max_rl", groups([1, 0, 0, 0] + [1, 1, 1, 0] + [0] * 4, [1] * 4 + [2] * 4 + [3] * 4))
    assert found == pytest.approx([3, -1, -1, -1] + [1 / 3] * 3 + [-1] + [0] * 4)


def test_max_rl_needs_a_positive_mean():
    assert advantages("max_rl", groups([1, -1, -1, 0], [1] * 4)) == [0.0] * 4


def test_opo_weighs_rewards_by_length():
    """Baseline (2 * 1 + 4 * 0 + 2 * 1) / 8 = 0.5, where the plain mean is 2/3; the empty response counts nowhere."""
    found = advantages("opo", groups([1, 0, 1, 5], [1] * 4, [2, 4, 2, 0]))
    assert found == pytest.approx([0.5] * 2 + [-0.5] * 4 + [0.5] * 2)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_pass_at_k_is_the_mean_advantage_of_the_sets_of_a_response(k):
    """Chen et al. 2.4 for 3 successes of 8, with binomials; k = 1 is the group's advantage with ddof 0."""
    found = advantages(
        changed("pass_at_k", {"advantage": {"k": k, "eps": 0.0}}), groups([1.0] * 3 + [0.0] * 5, [1] * 8)
    )
    none = math.comb(5, k) / math.comb(8, k)
    deviation = math.sqrt(none * (1 - none))
    success, failure = none / deviation, (none - math.comb(4, k - 1) / math.comb(7, k - 1)) / deviation
    assert found == pytest.approx([success] * 3 + [failure] * 5)
    assert 3 * success + 5 * failure == pytest.approx(0.0)
    if k == 1:
        assert success == pytest.approx((1 - 3 / 8) / math.sqrt(3 / 8 * 5 / 8))


def test_pass_at_k_of_a_group_that_passes_or_is_too_small_is_0():
    """With one failure of eight, every pair holds a success: pass@2 is 1 whatever is drawn."""
    assert advantages("pass_at_k", groups([1.0] * 7 + [0.0], [1] * 8)) == [0.0] * 8
    assert advantages(changed("pass_at_k", {"advantage": {"k": 4}}), groups([1.0, 0, 0], [1] * 3)) == [0.0] * 3


def test_best_of_group_has_its_lead():
    plain = changed("best_of_group", {"advantage": {"std": False}})
    given = groups([0.2, 1.0, 0.7, 0.0, 1, 1, 0, 0], [1] * 4 + [2] * 4)
    assert advantages(plain, given) == pytest.approx([0, 0.3, 0, 0] + [0] * 4)
    deviation = torch.tensor([0.2, 1.0, 0.7, 0.0]).std().item()
    assert advantages("best_of_group", given)[1] == pytest.approx(0.3 / deviation, rel=1e-5)


def test_lite_ppo_has_one_deviation_for_the_rollout():
    """Eight rewards, three of them 1: deviation sqrt(3/8 * 5/8 * 8/7)."""
    found = advantages("lite_ppo", groups([1, 0, 0, 0, 1, 1, 0, 0], [1] * 4 + [2] * 4))
    deviation = math.sqrt(3 / 8 * 5 / 8 * 8 / 7)
    assert found == pytest.approx([x / deviation for x in [0.75] + [-0.25] * 3 + [0.5] * 2 + [-0.5] * 2], rel=1e-5)
    other = groups([1, 0], [1, 1])
    assert load_objective("lite_ppo").advantages(other, Twice()).tolist() == pytest.approx(
        [x / math.sqrt(1 / 3) for x in (0.5, -0.5)], rel=1e-5
    )


class Twice:
    """Another rank with the same rewards."""

    def all_sum(self, value: torch.Tensor) -> torch.Tensor:
        return 2 * value

    def all_gather(self, value: torch.Tensor) -> list[torch.Tensor]:
        return [value, value]


def test_gdpo_normalises_each_reward_by_itself():
    """Right and wrong, short and long by turns: both rewards have the same say, where a sum of 1 - 1 and 0 - 0 of them
    would make two responses alike that differ in both."""
    given = groups([1, 0, 1, 0], [1] * 4, [8, 8, 10, 10], max_new_tokens=10)
    per_token = advantages("gdpo", given)
    found = [per_token[start] for start in (0, 8, 16, 26)]
    part = 0.5 / math.sqrt(1 / 3)  # of each reward: 1, 0, 1, 0 and 0, 0, -1, -1
    total = tensor(2 * part, 0, 0, -2 * part)
    assert found == pytest.approx((total / total.std()).tolist(), rel=1e-5, abs=1e-9)


def test_gdpo_takes_named_rewards_one_by_one_with_their_weights():
    """Where the first differs by 1 and the second by 0.1, a sum would let the first decide."""
    named = tensor([1, 0.1], [0, 0], [1, 0], [0, 0.1])
    keep = {"overlong": {"kind": "keep"}}
    given = Groups(named.mean(1), torch.tensor([1] * 4), torch.ones(4, dtype=torch.int64), named=named, weights=(3, 1))
    part = 0.5 / math.sqrt(1 / 3)  # of each reward
    total = tensor(4 * part, -4 * part, 2 * part, -2 * part)
    found = load_objective(changed("gdpo", keep)).advantages(given)
    assert found.tolist() == pytest.approx((total / total.std()).tolist(), rel=1e-4)
    with pytest.raises(UserError, match="a column for each weight"):
        Groups(named.mean(1), torch.tensor([1] * 4), torch.ones(4, dtype=torch.int64), named=named, weights=(1,))


def test_gdpo_without_a_punishment_is_the_whitened_group_advantage():
    given = Groups(tensor(1, 0, 0, 1, 1, 0), torch.tensor([1, 1, 1, 2, 2, 2]), torch.ones(6, dtype=torch.int64))
    plain = load_objective("grpo_dapo").advantages(given)
    found = load_objective(changed("gdpo", {"overlong": {"kind": "keep"}})).advantages(given)
    torch.testing.assert_close(found, (plain - plain.mean()) / plain.std(), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("name", ["max_rl", "opo", "pass_at_k", "best_of_group", "lite_ppo", "gdpo"])
def test_equal_rewards_and_groups_of_one_are_exactly_zero(name):
    given = groups([0.1] * 8 + [0.1], [1] * 8 + [2], [2] * 9, max_new_tokens=9)
    assert advantages(name, given) == [0.0] * 18
