"""Advantages by hand: group statistics, GPG's alpha, baselines, length punishment."""

import math

import pytest
import torch

from tepo.common.errors import UserError
from tepo.objectives import Groups, TokenBatch, load_objective
from tepo.objectives.axes.advantage import EntropyTerm
from tests.invariants.rows import changed
from tests.unit.objectives.flat import tensor


def groups(rewards: list[float], ids: list[int], lengths: list[int] | None = None, **more) -> Groups:
    return Groups(tensor(*rewards), torch.tensor(ids), torch.tensor(lengths or [1] * len(ids)), **more)


def advantages(source, given: Groups) -> list[float]:
    return load_objective(source).advantages(given).tolist()


@pytest.mark.parametrize(
    ("correct", "high", "low"), [(1, 2.475, -0.354), (2, 1.620, -0.540), (4, 0.935, -0.935), (7, 0.354, -2.475)]
)
@pytest.mark.parametrize("wrong", [0.0, -1.0])
def test_group_of_eight(correct, high, low, wrong):
    """The table of objectives.md 1.2 (ddof 1); rewards {0, 1} and {-1, 1} give the same."""
    found = advantages("grpo_dapo", groups([1.0] * correct + [wrong] * (8 - correct), [4] * 8))
    assert found == pytest.approx([high] * correct + [low] * (8 - correct), abs=2e-3)


def test_groups_may_be_interleaved_and_are_spread_over_tokens():
    found = advantages("dr_grpo", groups([1, 5, 0, 5, 1], [2, 1, 2, 1, 2], [2, 1, 0, 1, 1]))
    assert found == pytest.approx([1 / 3, 1 / 3, 0, 0, 1 / 3])


@pytest.mark.parametrize(
    "name",
    ["grpo_dapo", "dr_grpo", "gpg", "rloo", "reinforce_pp", "gtpo", "gtpo_v2", "gtpo_clipped", "grpo_s", "grpo_s_v2"],
)
def test_equal_rewards_and_groups_of_one_are_exactly_zero(name):
    """0.1 eight times has a mean that is not 0.1 in floating point. Entropy-shaped rows need equal failures for it."""
    value = 0.0 if name.startswith(("gtpo", "grpo_s")) else 0.1
    given = groups(
        [value] * 8 + [value], [1] * 8 + [2], [2] * 9, old_entropies=torch.full((18,), 0.5), max_new_tokens=9
    )
    assert advantages(name, given) == [0.0] * 18


def test_gpg_alpha_counts_valid_groups_and_verl_counts_rewards():
    """Two groups of four, one mixed with one success:
    the paper's alpha is 8/4, verl's 8/1 with {0, 1} and 1 with {-1, 1}."""
    verl = changed("gpg", {"advantage": {"alpha": "nonzero_rewards"}})
    plain = changed("gpg", {"advantage": {"alpha": "none"}})
    ids = [0] * 4 + [1] * 4
    given = groups([1, 0, 0, 0] + [0] * 4, ids)
    assert advantages("gpg", given)[0] == pytest.approx(2 * 0.75)
    assert advantages(verl, given)[0] == pytest.approx(8 * 0.75)
    assert advantages(plain, given)[0] == pytest.approx(0.75)
    signed = groups([1, -1, -1, -1] + [-1] * 4, ids)
    assert advantages("gpg", signed)[0] == pytest.approx(2 * 1.5)
    assert advantages(verl, signed)[0] == pytest.approx(1.5)


def test_gpg_without_a_valid_group_is_zero():
    assert advantages("gpg", groups([0, 0, 1, 1], [0, 0, 1, 1])) == [0.0] * 4


def test_leave_one_out():
    assert advantages("rloo", groups([1, 0, 0, 4], [0, 0, 0, 0])) == pytest.approx(
        [1 - 4 / 3, -5 / 3, -5 / 3, 4 - 1 / 3]
    )


def test_whitening_is_over_tokens_of_the_batch():
    """Centred rewards +-1/2 with 3, 1, 1, 1 tokens: mean 1/6, variance (ddof 1) by hand."""
    given = groups([1, 0, 1, 0], [0, 0, 1, 1], [3, 1, 1, 1])
    values = [0.5] * 3 + [-0.5, 0.5, -0.5]
    mean = sum(values) / 6
    variance = sum((x - mean) ** 2 for x in values) / 5
    assert advantages("reinforce_pp", given) == pytest.approx([(x - mean) / math.sqrt(variance + 1e-8) for x in values])


def test_soft_punishment():
    """DAPO Eq. 13 with a limit of 10 and a buffer of 0.2: 0 up to 8 tokens, -0.5 at 9, -1 at 10."""
    punished = changed("dr_grpo", {"overlong": {"kind": "punish"}, "aggregation": {"kind": "token_mean"}})
    lengths = [1, 8, 9, 10]
    found = advantages(punished, groups([1, 1, 1, 1], [0] * 4, lengths, max_new_tokens=10))
    shaped = [1, 1, 0.5, 0]
    mean = sum(shaped) / 4
    assert found == pytest.approx([x - mean for x, length in zip(shaped, lengths, strict=True) for _ in range(length)])


def test_punishment_needs_the_limit():
    with pytest.raises(UserError, match="max_new_tokens"):
        advantages(changed("grpo_dapo", {"overlong": {"kind": "punish"}}), groups([1, 0], [0, 0]))


def test_gpg_judges_groups_before_the_punishment():
    """An all-wrong group whose lengths differ is not a valid one:
    peers that filter on shaped rewards let it through."""
    given = groups([0, 0, 1, 0], [0, 0, 1, 1], [2, 10, 2, 2], max_new_tokens=10)
    found = load_objective(changed("gpg", {"overlong": {"kind": "punish"}})).advantages(given)
    assert found[-1].item() == pytest.approx(-2 * 0.5)


def test_entropy_term_never_flips_a_sign_and_vanishes_at_zero_advantage():
    values, entropies = tensor(1.0, -1.0, -1.0, 0.0, 0.1), tensor(0.5, 0.5, 100.0, 3.0, 3.0)
    batch = TokenBatch(values, values, torch.tensor([5]), entropies=entropies)
    assert EntropyTerm().current(values, batch).tolist() == pytest.approx([1.2, -0.8, -0.5, 0.0, 0.15])
    weak = EntropyTerm(alpha=4e-4).current(values, batch)
    assert weak.tolist() == pytest.approx([1.0002, -0.9998, -0.96, 0.0, 0.1012])


def test_advantages_keep_the_dtype_and_carry_no_gradient():
    given = Groups(torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), torch.tensor([2, 1]))
    found = load_objective("grpo_dapo").advantages(given)
    assert found.dtype == torch.float32
    assert not found.requires_grad
