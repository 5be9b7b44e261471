"""NaN is never hidden: in whatever a row reads, it reaches the loss, where a trainer stops."""

from dataclasses import replace

import pytest
import torch

from tepo.objectives import Groups, Objective, load_objective, names
from tepo.objectives.testing.case import TabularCase, make_case
from tests.invariants.rows import CHANGES, SPLIT_DEPENDENT, changed

ROWS = {name: load_objective(name) for name in names()}
ROWS |= {label: load_objective(changed(*change)) for label, change in (CHANGES | SPLIT_DEPENDENT).items()}
FIRST, LAST = 0, -1  # tokens and responses: a success of the first group, a failure of the last


def broken(values: torch.Tensor, place: int) -> torch.Tensor:
    values = values.detach().clone()
    values[place] = torch.nan
    return values


def loss_of(objective: Objective, case: TabularCase, groups: Groups, **changes: torch.Tensor) -> torch.Tensor:
    """The loss of the case, its batch changed."""
    batch = replace(case.batch(objective, objective.advantages(groups)), **changes)
    return objective.loss(batch, objective.prepare(batch)).loss


@pytest.mark.parametrize("label", ROWS)
def test_reward(label):
    """In a success, in a failure of its group, and in a group without a success."""
    case = make_case(0)
    given = case.groups()
    for place in (FIRST, 1, LAST):
        loss = loss_of(ROWS[label], case, replace(given, rewards=broken(given.rewards, place)))
        assert loss.isnan(), f"response {place}"


@pytest.mark.parametrize("label", ROWS)
def test_log_probs_and_what_a_row_needs_beside_them(label):
    objective, case = ROWS[label], make_case(0)
    batch = case.batch(objective)
    always = {"logprobs": True, "old_logprobs": True}
    beside = ("entropies", "old_entropies", "initial_logprobs", "sampler_logprobs", "full_kl")
    for name, read in (always | {name: getattr(objective.needs, name) for name in beside}).items():
        for place in (FIRST, LAST):
            loss = loss_of(objective, case, case.groups(), **{name: broken(getattr(batch, name), place)})
            assert loss.isnan() == read, f"{name} of token {place}"


@pytest.mark.parametrize("name", ["gtpo", "gtpo_clipped", "gtpo_v2", "grpo_s", "grpo_s_v2"])
def test_old_entropy_of_a_success_in_the_advantages(name):
    case = make_case(0)
    given = case.groups()
    assert given.old_entropies is not None
    found = ROWS[name].advantages(replace(given, old_entropies=broken(given.old_entropies, FIRST)))
    assert found[: FIRST + 1].isnan().all()


def test_its_gradient_is_nan_too():
    """A mask that a NaN switched off left gradients that looked sound."""
    objective, case = ROWS["tepo"], make_case(0)
    batch = case.batch(objective)
    assert batch.entropies is not None
    loss = loss_of(objective, case, case.groups(), entropies=broken(batch.entropies, LAST))
    assert torch.autograd.grad(loss, case.logits)[0].isnan().any()


def test_log_0_of_another_policy_is_not_a_nan():
    for label in ("grpo", "grpo_dapo, dual clip, corrected"):
        objective, case = ROWS[label], make_case(0)
        off = torch.full_like(case.chosen(case.initial_logits), -torch.inf)
        assert loss_of(objective, case, case.groups(), initial_logprobs=off, sampler_logprobs=off).isfinite()
