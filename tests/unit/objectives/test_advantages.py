"""Advantages by hand: group statistics, baselines and scales, length punishment, shares of entropy."""

import math
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.objectives import Groups, load_objective, names
from tests.unit.objectives.flat import by_hand, coefficients, tensor

SHARES = ("gtpo", "gtpo_clipped", "gtpo_v2", "grpo_s", "grpo_s_v2")  # told apart by entropies too


def groups(rewards: list[float], ids: list[int], lengths: list[int] | None = None, **more: Any) -> Groups:
    return Groups(tensor(*rewards), torch.tensor(ids), torch.tensor(lengths or [1] * len(ids)), **more)


def advantages(name: str, given: Groups, **changes: Any) -> list[float]:
    return load_objective(name, changes).advantages(given).tolist()


@pytest.mark.parametrize(
    ("correct", "high", "low"), [(1, 2.475, -0.354), (2, 1.620, -0.540), (4, 0.935, -0.935), (7, 0.354, -2.475)]
)
@pytest.mark.parametrize("wrong", [0.0, -1.0])
def test_group_of_eight(correct, high, low, wrong):
    """Deviations with n - 1; rewards {0, 1} and {-1, 1} give the same."""
    found = advantages("grpo_dapo", groups([1.0] * correct + [wrong] * (8 - correct), [4] * 8))
    assert found == pytest.approx([high] * correct + [low] * (8 - correct), abs=2e-3)


def test_groups_may_be_interleaved_and_are_spread_over_tokens():
    found = advantages("dr_grpo", groups([1, 5, 0, 5, 1], [2, 1, 2, 1, 2], [2, 1, 0, 1, 1]))
    assert found == pytest.approx([1 / 3, 1 / 3, 0, 0, 1 / 3])


WITH_EPS = [name for name in names() if "eps" in load_objective(name).read]


@pytest.mark.parametrize(
    ("name", "eps"), [*((name, {}) for name in names()), *((name, {"eps": 0}) for name in WITH_EPS)]
)
def test_equal_rewards_and_groups_of_one_are_exactly_zero(name, eps):
    """0.1 eight times has a mean that is not 0.1 in floating point, and 0/0 is 0."""
    value = 0.0 if name in SHARES else 0.1
    same, limit = {"old_entropies": torch.full((18,), 0.5)}, {"max_new_tokens": 9, "finished": torch.ones(9) > 0}
    given = groups([value] * 9, [1] * 8 + [2], [2] * 9, **same, **limit)
    assert advantages(name, given, **eps) == [0.0] * 18
    if name not in (*SHARES, "gdpo", "reinforce_pp"):  # by entropies, lengths and the whole rollout
        mixed = groups([1, 1, 1, 0.1, 0.1, 1, 0, 0, 1], [0, 0, 0, 1, 1, 2, 2, 2, 3], [2] * 9, **same, **limit)
        found = torch.tensor(advantages(name, mixed, **eps))
        assert found.isfinite().all()
        assert not found[:10].any()
        assert not found[16:].any()


def test_gpg_alpha_counts_valid_groups_and_verl_counts_rewards():
    """Two groups of four, one mixed with one success:
    the paper's alpha is 8/4, verl's 8/1 with {0, 1} and 1 with {-1, 1}."""
    verl, plain = {"A": "(R - mean_g(R))/mean_r(responses(R != 0))"}, {"A": "R - mean_g(R)"}
    ids = [0] * 4 + [1] * 4
    given = groups([1, 0, 0, 0] + [0] * 4, ids)
    assert advantages("gpg", given)[0] == pytest.approx(2 * 0.75)
    assert advantages("gpg", given, **verl)[0] == pytest.approx(8 * 0.75)
    assert advantages("gpg", given, **plain)[0] == pytest.approx(0.75)
    signed = groups([1, -1, -1, -1] + [-1] * 4, ids)
    assert advantages("gpg", signed)[0] == pytest.approx(2 * 1.5)
    assert advantages("gpg", signed, **verl)[0] == pytest.approx(1.5)
    assert advantages("gpg", groups([0, 0, 1, 1], [0, 0, 1, 1])) == [0.0] * 4, "without a valid group"


def test_leave_one_out():
    found = advantages("rloo", groups([1, 0, 0, 4], [0, 0, 0, 0]))
    assert found == pytest.approx([1 - 4 / 3, -5 / 3, -5 / 3, 4 - 1 / 3])


def test_whitening_is_over_tokens_of_the_batch():
    """Centred rewards +-1/2 with 3, 1, 1, 1 tokens: mean 1/6, variance (n - 1) by hand."""
    given = groups([1, 0, 1, 0], [0, 0, 1, 1], [3, 1, 1, 1])
    values = [0.5] * 3 + [-0.5, 0.5, -0.5]
    mean = sum(values) / 6
    variance = sum((x - mean) ** 2 for x in values) / 5
    assert advantages("reinforce_pp", given) == pytest.approx([(x - mean) / math.sqrt(variance + 1e-8) for x in values])


PUNISHED = {"r": "R - clip((T - (1 - 0.2)*L)/(0.2*L), 0, 1)", "A": "r - mean_g(r)", "average": "tokens"}


def test_soft_punishment():
    """DAPO Eq. 13 with a limit of 10 and a buffer of 0.2: 0 up to 8 tokens, -0.5 at 9, -1 at 10."""
    lengths = [1, 8, 9, 10]
    found = advantages("dr_grpo", groups([1, 1, 1, 1], [0] * 4, lengths, max_new_tokens=10), **PUNISHED)
    shaped = [1, 1, 0.5, 0]
    mean = sum(shaped) / 4
    assert found == pytest.approx([x - mean for x, length in zip(shaped, lengths, strict=True) for _ in range(length)])
    with pytest.raises(UserError, match="max_new_tokens"):
        advantages("dr_grpo", groups([1, 0], [0, 0]), **PUNISHED)


def test_entropy_term_never_flips_a_sign_and_vanishes_at_zero_advantage():
    """At ratio 1 the coefficient is the advantage; alpha = 4e-4 is TEPO as printed (A21)."""
    batch = by_hand([1.0] * 5, [1.0, -1.0, -1.0, 0.0, 0.1], entropies=tensor(0.5, 0.5, 100.0, 3.0, 3.0))
    for changes, expected in (
        ({}, [1.2, -0.8, -0.5, 0.0, 0.15]),
        ({"alpha": 4e-4}, [1.0002, -0.9998, -0.96, 0.0, 0.1012]),
    ):
        objective = load_objective("entropy_advantage", changes)
        assert coefficients(objective, batch).tolist() == pytest.approx(expected)
        tokens = objective.loss(batch, objective.prepare(batch)).tokens
        assert tokens["advantage"].tolist() == pytest.approx(expected)


def test_advantages_keep_the_dtype_and_carry_no_gradient():
    given = Groups(torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), torch.tensor([2, 1]))
    found = load_objective("grpo_dapo").advantages(given)
    assert found.dtype == torch.float32
    assert not found.requires_grad


# other baselines and scales -------------------------------------------------------------------------------------------
def test_max_rl_weighs_a_rare_success_more():
    """One of four: (1 - 1/4) / (1/4) = 3; three of four: 1/3. No success, and a mean below 0: 0."""
    found = advantages("max_rl", groups([1, 0, 0, 0] + [1, 1, 1, 0] + [0] * 4, [1] * 4 + [2] * 4 + [3] * 4))
    assert found == pytest.approx([3, -1, -1, -1] + [1 / 3] * 3 + [-1] + [0] * 4)
    assert advantages("max_rl", groups([1, -1, -1, 0], [1] * 4)) == [0.0] * 4


def test_opo_weighs_rewards_by_length():
    """Baseline (2 * 1 + 4 * 0 + 2 * 1) / 8 = 0.5, where the plain mean is 2/3; the empty response counts nowhere."""
    found = advantages("opo", groups([1, 0, 1, 5], [1] * 4, [2, 4, 2, 0]))
    assert found == pytest.approx([0.5] * 2 + [-0.5] * 4 + [0.5] * 2)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_pass_at_k_is_the_mean_advantage_of_the_sets_of_a_response(k):
    """Chen et al. 2.4 for 3 successes of 8, with binomials; k = 1 is the group's advantage with n below."""
    found = advantages("pass_at_k", groups([1.0] * 3 + [0.0] * 5, [1] * 8), k=k, eps=0)
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
    assert advantages("pass_at_k", groups([1.0, 0, 0], [1] * 3), k=4) == [0.0] * 3


def test_best_of_group_has_its_lead():
    """verl divides it by the group's deviation, the paper does not."""
    given = groups([0.2, 1.0, 0.7, 0.0, 1, 1, 0, 0], [1] * 4 + [2] * 4)
    plain = advantages("best_of_group", given, A="max(R - max_others_g(R), 0)")
    assert plain == pytest.approx([0, 0.3, 0, 0] + [0] * 4)
    deviation = torch.tensor([0.2, 1.0, 0.7, 0.0]).std().item()
    assert advantages("best_of_group", given)[1] == pytest.approx(0.3 / deviation, rel=1e-5)


class Twice:
    """Another rank with the same rewards."""

    def all_sum(self, value: Tensor) -> Tensor:
        return 2 * value

    def all_gather(self, value: Tensor) -> list[Tensor]:
        return [value, value]


def test_lite_ppo_has_one_deviation_for_the_rollout():
    """Eight rewards, three of them 1: deviation sqrt(3/8 * 5/8 * 8/7)."""
    found = advantages("lite_ppo", groups([1, 0, 0, 0, 1, 1, 0, 0], [1] * 4 + [2] * 4))
    deviation = math.sqrt(3 / 8 * 5 / 8 * 8 / 7)
    assert found == pytest.approx([x / deviation for x in [0.75] + [-0.25] * 3 + [0.5] * 2 + [-0.5] * 2], rel=1e-5)
    other = load_objective("lite_ppo").advantages(groups([1, 0], [1, 1]), Twice())
    assert other.tolist() == pytest.approx([x / math.sqrt(1 / 3) for x in (0.5, -0.5)], rel=1e-5)


PART = 0.5 / math.sqrt(1 / 3)  # of a reward that two of four have


def test_gdpo_normalises_each_reward_by_itself():
    """Right and wrong, short and long by turns: both rewards have the same say, where a sum of 1 - 1 and 0 - 0 of them
    would make two responses alike that differ in both."""
    per_token = advantages("gdpo", groups([1, 0, 1, 0], [1] * 4, [8, 8, 10, 10], max_new_tokens=10))
    total = tensor(2 * PART, 0, 0, -2 * PART)  # 1, 0, 1, 0 and 0, 0, -1, -1
    found = [per_token[start] for start in (0, 8, 16, 26)]
    assert found == pytest.approx((total / total.std()).tolist(), rel=1e-5, abs=1e-9)


def test_gdpo_takes_named_rewards_one_by_one_with_their_weights():
    """Where the first differs by 1 and the second by 0.1, a sum would let the first decide. All are short."""
    named = tensor([1, 0.1], [0, 0], [1, 0], [0, 0.1])
    given = groups(named.mean(1).tolist(), [1] * 4, named=named, weights=(3, 1), max_new_tokens=10)
    total = tensor(4 * PART, -4 * PART, 2 * PART, -2 * PART)
    assert advantages("gdpo", given) == pytest.approx((total / total.std()).tolist(), rel=1e-4)
    with pytest.raises(UserError, match="a column for each weight"):
        groups([1] * 4, [1] * 4, named=named, weights=(1,))


def test_gdpo_of_short_responses_is_the_whitened_group_advantage():
    given = groups([1, 0, 0, 1, 1, 0], [1, 1, 1, 2, 2, 2], max_new_tokens=10)
    plain = tensor(*advantages("grpo_dapo", given))
    found = tensor(*advantages("gdpo", given))
    torch.testing.assert_close(found, (plain - plain.mean()) / plain.std(), rtol=1e-5, atol=1e-9)


# shares of entropy ----------------------------------------------------------------------------------------------------
LENGTHS, REWARDS = [3, 1, 2, 4], [1, 1, 0, 1]  # successes: 0, 1, 3
places = torch.tensor([0, 1, 2, 0, 0, 1, 0, 1, 2, 3])
SUCCESS = torch.tensor([True] * 4 + [False] * 2 + [True] * 4)
SHARE = {"A": "share_t(H_old, R > 0)"}


def entropies(seed: int = 0) -> Tensor:
    return torch.rand(10, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.1


def shaped(old: Tensor, rewards: list[float] = REWARDS, lengths: list[int] = LENGTHS) -> Groups:
    return groups(rewards, [5] * len(rewards), lengths, old_entropies=old, max_new_tokens=4)


def test_token_shares_conserve_the_reward_at_each_position():
    """The shaped rewards of the successes still being generated at t add up to (1 + alpha) d_t (3.5.1)."""
    reward = load_objective("gtpo", {"A": "u"}).advantages(shaped(entropies()))
    for t, alive in enumerate([3, 2, 2, 1]):
        assert reward[places == t].sum().item() == pytest.approx(1.1 * alive, abs=1e-6)


def test_counting_failures_too_breaks_the_sum_rule():
    """Reading d_t as all responses still being generated: the failure at positions 0 and 1 inflates the sum."""
    counted = {"A": "share_t(H_old, R > 0)*share_t(tokens(R > 0), T > 0)"}
    found = load_objective("gtpo", counted).advantages(shaped(torch.full((10,), 0.5)))
    assert [found[places == t].sum().item() for t in range(4)] == pytest.approx([4.0, 3.0, 2.0, 1.0])


def test_response_shares_conserve_the_reward():
    """sum of r^ = (1 + beta) sum of r (3.5.2)."""
    given = shaped(tensor(0.2, 0.9, 0.4, 0.1), lengths=[1] * 4)
    assert sum(advantages("grpo_s", given, A="u")) == pytest.approx(1.1 * 3, abs=1e-6)


@pytest.mark.parametrize("entropy", [0.0, 1e-30, 1e-8, 1e-3, 5.0])
def test_a_lone_success_gets_the_whole_share_whatever_its_entropy(entropy):
    given = shaped(tensor(entropy, 9.0), [1, 0], [1, 1])
    assert advantages("gtpo", given, **SHARE) == [1.0, 0.0]
    assert advantages("grpo_s", given, A="share_g(h, R > 0)") == [1.0, 0.0]


@pytest.mark.parametrize("name", SHARES)
@pytest.mark.parametrize("scale", [1e-4, 1e-9, 1e-20])
def test_advantages_depend_on_proportions_of_entropies_alone(name, scale):
    """Entropies of a nearly deterministic policy, 1e-9 nats say, are told apart like any others."""
    for rewards in (REWARDS, [0, 1, 0, 0]):
        expected = advantages(name, shaped(entropies(), rewards))
        found = advantages(name, shaped(scale * entropies(), rewards))
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_tokens_of_a_lone_success_have_one_advantage():
    """Each has the whole share at its place, sure or not, so nothing tells them apart."""
    found = advantages("gtpo", shaped(tensor(0, 1e-9, 1e-7, *[0.3] * 7), [1, 0, 0, 0]))
    assert max(found[:3]) == min(found[:3]) > 0


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


def test_groups_without_a_mix():
    """All correct in version 1: what entropies alone tell apart. All wrong: nothing in version 1, entropies in 2."""
    right, wrong = shaped(entropies(), [1] * 4), shaped(entropies(), [0] * 4)
    found = advantages("gtpo", right)
    assert max(map(abs, found)) > 0.1
    assert statistics.fmean(found) == pytest.approx(0.0, abs=1e-9)
    assert max(map(abs, advantages("gtpo", wrong))) == 0
    assert max(map(abs, advantages("gtpo_v2", wrong))) > 0.1


def test_version_2_punishes_the_surest_failure_most():
    found = advantages("gtpo_v2", shaped(tensor(0.5, 0.1, 0.5, 1.5), [1, 0, 0, 0], [1] * 4))
    assert found[0] > 0
    assert found[1] < found[2] < found[3]


def test_version_2_gives_failures_positive_advantages_as_it_is_printed():
    """Eq. 18-19: failures are normalised by themselves. Shares of 1/H among them: 1.8 and 0.2; of the one success: 1.
    Success: (1.1 - 1.1/3) / 0.6351. Failures -1.8, -0.2 and the 0 of the success: mean -2/3, deviation 0.9866."""
    expected = [1.155, -1.149, 0.473]
    for name in ("gtpo_v2", "grpo_s_v2"):
        found = advantages(name, shaped(tensor(0.5, 0.1, 0.9), [1, 0, 0], [1] * 3))
        assert found == pytest.approx(expected, abs=1e-3), name


def test_successes_keep_positive_advantages_because_failures_enter_the_statistics():
    """Normalising each class by itself would give correct answers a mean of zero."""
    for name in ("gtpo", "gtpo_v2", "grpo_s", "grpo_s_v2"):
        assert tensor(*advantages(name, shaped(entropies(3))))[SUCCESS].min() > 0, name


def test_batch_statistics_span_groups():
    """The same tokens in two groups of different luck: group statistics centre each, batch statistics both together."""
    ids, rewards = [0] * 4 + [1] * 4, [1, 1, 0, 1, 0, 0, 0, 1]
    given = groups(rewards, ids, LENGTHS * 2, old_entropies=torch.full((20,), 0.5))
    by_group = tensor(*advantages("gtpo", given))
    by_batch = tensor(*advantages("gtpo", given, A="(u - mean_r(u))/(std_r(u) + eps)"))
    assert by_group[:10].mean().item() == pytest.approx(0, abs=1e-9)
    assert by_batch[:10].mean().item() > 0.1
    assert by_batch.mean().item() == pytest.approx(0, abs=1e-9)
    equal = groups([1] * 6, [0] * 6, old_entropies=torch.full((6,), 0.5))  # the mean of six times 1.1 is not 1.1
    for changes in ({}, {"A": "(u - mean_r(u))/(std_r(u) + eps)"}):
        assert advantages("gtpo", equal, **changes) == [0.0] * 6


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
