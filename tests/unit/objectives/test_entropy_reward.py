"""GTPO and GRPO-S: conservation, shares by hand, degenerate columns and groups, the length term of 4.5.1."""

import statistics

import pytest
import torch

from tepo.common.errors import UserError
from tepo.objectives import Groups, load_objective
from tepo.objectives.axes.entropy_reward import GtpoClipped, inverse, shares
from tests.invariants.rows import changed
from tests.unit.objectives.flat import tensor

LENGTHS = torch.tensor([3, 1, 2, 4])  # successes: 0, 1, 3
REWARDS = tensor(1, 1, 0, 1)
IDS = torch.tensor([5, 5, 5, 5])


def groups(entropies: torch.Tensor, rewards: torch.Tensor = REWARDS) -> Groups:
    return Groups(rewards, IDS, LENGTHS, entropies, max_new_tokens=4)


def columns(given: Groups) -> tuple[torch.Tensor, torch.Tensor]:
    """Position of each token and whether it belongs to a success."""
    return given.positions, (given.rewards > 0)[given.rows]


def test_token_shares_conserve_the_reward_at_each_position():
    """The shaped rewards of the successes still being generated at t add up to (1 + alpha) d_t (3.5.1)."""
    entropies = torch.rand(10, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
    given = groups(entropies)
    position, success = columns(given)
    reward = success.double() + 0.1 * shares(entropies, success, position, success)
    for t, alive in enumerate([3, 2, 2, 1]):
        assert reward[position == t].sum().item() == pytest.approx(1.1 * alive, abs=1e-6)
    assert reward.sum().item() == pytest.approx(1.1 * float((LENGTHS * REWARDS).sum()), abs=1e-5)


def test_counting_failures_too_breaks_the_sum_rule():
    """Reading d_t as all responses still being generated: the failure at positions 0 and 1 inflates the sum."""
    entropies = torch.full((10,), 0.5, dtype=torch.float64)
    given = groups(entropies)
    position, success = columns(given)
    everyone = torch.ones_like(success)
    assert shares(entropies, success, position, everyone)[position == 0].sum().item() == pytest.approx(4.0, abs=1e-6)
    ours, theirs = load_objective("gtpo"), load_objective(changed("gtpo", {"advantage": {"counted": "all"}}))
    assert not torch.allclose(ours.advantages(given), theirs.advantages(given))


def test_response_shares_conserve_the_reward():
    """sum of r^ = (1 + beta) sum of r (3.5.2)."""
    mean = tensor(0.2, 0.9, 0.4, 0.1)
    success = REWARDS > 0
    assert (success.double() + 0.1 * shares(mean, success, IDS, success)).sum().item() == pytest.approx(
        1.1 * 3, abs=1e-6
    )


@pytest.mark.parametrize("entropy", [0.0, 1e-30, 1e-8, 1e-3, 5.0])
def test_a_lone_success_gets_the_whole_share_whatever_its_entropy(entropy):
    success = torch.tensor([True, False])
    assert shares(tensor(entropy, 9.0), success, torch.tensor([0, 0]), success).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("name", ["gtpo", "gtpo_clipped", "gtpo_v2", "grpo_s", "grpo_s_v2"])
@pytest.mark.parametrize("scale", [1e-4, 1e-9, 1e-20])
def test_advantages_depend_on_proportions_of_entropies_alone(name, scale):
    """Entropies of a nearly deterministic policy, 1e-9 nats say, are told apart like any others."""
    entropies = torch.rand(10, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
    for rewards in (REWARDS, tensor(0, 1, 0, 0)):
        expected = load_objective(name).advantages(groups(entropies, rewards))
        found = load_objective(name).advantages(groups(scale * entropies, rewards))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_tokens_of_a_lone_success_have_one_advantage():
    """Each has the whole share at its place, sure or not, so nothing tells them apart."""
    found = load_objective("gtpo").advantages(groups(tensor(0, 1e-9, 1e-7, *[0.3] * 7), tensor(1, 0, 0, 0)))
    assert found[:3].max() == found[:3].min() > 0


def test_sure_tokens_stay_finite():
    """All successes sure at a position: equal shares, which keep the sum rule. A sure failure takes h_t alone."""
    zero = torch.zeros(10, dtype=torch.float64)
    for name in ("gtpo", "gtpo_clipped", "gtpo_v2", "grpo_s", "grpo_s_v2"):
        assert load_objective(name).advantages(groups(zero)).isfinite().all(), name
    success = torch.tensor([True, True])
    assert shares(tensor(0.0, 0.0), success, torch.tensor([0, 0]), success).tolist() == [1.0, 1.0]
    h = tensor(0.0, 1.0)
    assert shares(inverse(h), success, torch.tensor([0, 0]), success).tolist() == pytest.approx([2.0, 0.0], abs=1e-6)
    assert shares(inverse(h.clamp(min=1e-3)), success, torch.tensor([0, 0]), success).tolist() == pytest.approx(
        [2000 / 1001, 2 / 1001], rel=1e-3
    )


def test_all_correct_in_version_1_leaves_advantages_from_entropy_alone():
    entropies = torch.rand(10, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
    found = load_objective("gtpo").advantages(groups(entropies, torch.ones(4, dtype=torch.float64)))
    assert found.abs().max() > 0.1
    assert found.mean().item() == pytest.approx(0.0, abs=1e-9)


def test_all_wrong_in_version_1_is_zero_and_in_version_2_is_not():
    entropies = torch.rand(10, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
    wrong = groups(entropies, torch.zeros(4, dtype=torch.float64))
    assert load_objective("gtpo").advantages(wrong).abs().max() == 0
    assert load_objective("gtpo_v2").advantages(wrong).abs().max() > 0.1


def test_version_2_punishes_the_surest_failure_most():
    rewards = tensor(1, 0, 0, 0)
    given = Groups(rewards, IDS, torch.ones(4, dtype=torch.int64), tensor(0.5, 0.1, 0.5, 1.5))
    found = load_objective("gtpo_v2").advantages(given)
    assert found[0] > 0
    assert found[1] < found[2] < found[3]


def test_successes_keep_positive_advantages_because_failures_enter_the_statistics():
    """Normalising each class by itself would give correct answers a mean of zero (objectives.md 14)."""
    entropies = torch.rand(10, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) + 0.1
    for name in ("gtpo", "gtpo_v2", "grpo_s", "grpo_s_v2"):
        given = groups(entropies)
        assert load_objective(name).advantages(given)[columns(given)[1]].min() > 0, name


def test_batch_statistics_span_groups():
    """The same tokens in two groups of different luck: group statistics centre each, batch statistics both together."""
    entropies = torch.full((20,), 0.5, dtype=torch.float64)
    given = Groups(tensor(1, 1, 0, 1, 0, 0, 0, 1), torch.tensor([0] * 4 + [1] * 4), LENGTHS.repeat(2), entropies)
    by_group = load_objective("gtpo").advantages(given)
    by_batch = load_objective(changed("gtpo", {"advantage": {"statistics": "batch"}})).advantages(given)
    assert by_group[:10].mean().item() == pytest.approx(0, abs=1e-9)
    assert by_batch[:10].mean().item() > 0.1
    assert by_batch.mean().item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("statistics", ["group", "batch"])
def test_equal_rewards_leave_no_advantage_not_even_of_rounding(statistics):
    """The mean of six times 1.1 is not 1.1."""
    given = Groups(torch.ones(6).double(), torch.zeros(6).long(), torch.ones(6).long(), torch.full((6,), 0.5).double())
    objective = load_objective(changed("gtpo", {"advantage": {"statistics": statistics, "alpha": 0.1}}))
    assert objective.advantages(given).tolist() == [0.0] * 6


def test_length_term_of_4_5_1():
    """L2 = 10, L1 = 2: continuous -(T - 8)/2; as printed -(T - 8)/10, then a jump to -1 beyond L2."""
    given = Groups(tensor(1, 1, 1, 1), IDS, torch.tensor([8, 9, 10, 11]), max_new_tokens=10)
    assert GtpoClipped().length_term_of(given).tolist() == pytest.approx([0, -0.5, -1, -1])
    printed = GtpoClipped(length_term="as_printed").length_term_of(given)
    assert printed.tolist() == pytest.approx([0, -0.1, -0.2, -1])


@pytest.mark.parametrize("settings", [{"alpha1": 0.5}, {"alpha1": 0.5, "alpha2": 0.5, "kappa": 1.5}])
def test_constants_of_4_5_1_must_leave_an_interval(settings):
    with pytest.raises(UserError, match=r"alpha1|kappa"):
        load_objective(changed("gtpo_clipped", {"advantage": settings}))


def test_entropies_are_required():
    with pytest.raises(UserError, match="old_entropies"):
        load_objective("gtpo").advantages(Groups(REWARDS, IDS, LENGTHS))


def test_geometric_mean_option():
    given = Groups(tensor(1, 1, 0), torch.tensor([0, 0, 0]), torch.tensor([2, 1, 1]), tensor(0.1, 1.0, 0.3, 0.5))
    found = load_objective(changed("grpo_s", {"advantage": {"entropy_mean": "geometric"}})).advantages(given)
    h = [0.1**0.5, 0.3]
    raised = [1 + 0.1 * 2 * x / sum(h) for x in h] + [0.0]
    mean = sum(raised) / 3
    std = (sum((x - mean) ** 2 for x in raised) / 2) ** 0.5
    assert found.tolist() == pytest.approx([(raised[i] - mean) / (std + 1e-6) for i in (0, 0, 1, 2)], rel=1e-6)


@pytest.mark.parametrize("name", ["gtpo_v2", "grpo_s_v2"])
def test_an_entropy_floor_is_the_least_that_any_entropy_counts_as(name):
    entropies = torch.rand(10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    floored = load_objective(changed(name, {"advantage": {"entropy_floor": 0.4}}))
    assert (entropies < 0.4).any()
    plain = load_objective(name).advantages(groups(entropies.clamp(min=0.4)))
    torch.testing.assert_close(floored.advantages(groups(entropies)), plain, rtol=1e-12, atol=0)
    assert not torch.allclose(load_objective(name).advantages(groups(entropies)), plain)


def test_one_sure_token_does_not_end_a_geometric_mean():
    """Its entropy counts as 1e-8 there, and as 0 in an arithmetic mean."""
    given = Groups(tensor(1, 1, 0), torch.tensor([0, 0, 0]), torch.tensor([2, 1, 1]), tensor(0.0, 1.0, 3e-4, 0.5))
    found = load_objective(changed("grpo_s", {"advantage": {"entropy_mean": "geometric"}})).advantages(given)
    h = [1e-8**0.5, 3e-4]
    raised = [1 + 0.1 * 2 * x / sum(h) for x in h] + [0.0]
    mean, std = statistics.fmean(raised), statistics.stdev(raised)
    assert found.tolist() == pytest.approx([(raised[i] - mean) / (std + 1e-6) for i in (0, 0, 1, 2)], rel=1e-9)
