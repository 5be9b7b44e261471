"""What a batch makes of what it is given: detached, checked, and never waited for."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tepo.common.errors import UserError
from tepo.objectives import Groups, TokenBatch, load_objective, names
from tepo.objectives.testing.case import make_case
from tests.invariants.rows import variants
from tests.unit.objectives.flat import by_hand, tensor

ROWS = variants()
LEAVES = ("old_logprobs", "advantages", "old_entropies", "initial_logprobs", "sampler_logprobs")


@pytest.mark.parametrize("label", ROWS)
def test_nothing_but_the_policy_has_a_gradient(label):
    """The gradient by old log-probs, advantages and all else that a trainer may have left in its graph is none."""
    objective, case = load_objective(ROWS[label]), make_case(3)
    batch = case.batch(objective)
    leaves = {name: getattr(batch, name).detach().clone().requires_grad_() for name in LEAVES}
    expected = objective.loss(batch, objective.prepare(batch)).loss
    attached = TokenBatch(**vars(case.batch(objective)) | {name: 1 * leaf for name, leaf in leaves.items()})
    loss = objective.loss(attached, objective.prepare(attached)).loss
    assert torch.equal(loss, expected)
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    assert found == (None,) * len(leaves)


@pytest.mark.parametrize("name", ["grpo_dapo", "gspo", "tepo_kl_all", "cispo"])
def test_the_current_log_probs_as_the_old_ones(name):
    """On-policy training with one tensor for both: the ratio is 1, the gradient -A/N on each token."""
    logprobs = tensor(-1, -2, -0.5).requires_grad_()
    objective = load_objective(name, {"aggregation.kind": "token_mean"})
    batch = TokenBatch(logprobs, tensor(1, 1, -2), torch.tensor([2, 1]), logprobs=logprobs)
    (gradient,) = torch.autograd.grad(objective.loss(batch, objective.prepare(batch)).loss, logprobs)
    torch.testing.assert_close(gradient, tensor(-1, -1, 2) / 3, rtol=0, atol=1e-15)


def test_a_mask_selects():
    objective, batch = load_objective("gspo"), by_hand([1, 2, 3, 4], [1, 1, -1, 2], [1, 2, 1])
    plan = objective.prepare(batch)
    for chosen in (torch.tensor([False, True, True]), [False, True, True], [1, 2], torch.tensor([1, 2]), range(1, 3)):
        part = batch.select(chosen)
        assert (part.lengths.tolist(), part.advantages.tolist()) == ([2, 1], [1, -1, 2])
        assert plan.select(chosen).lengths.tolist() == [2, 1]
    assert batch.select([]).lengths.tolist() == batch.select(torch.zeros(3) > 0).lengths.tolist() == []


@pytest.mark.parametrize(
    ("chosen", "what"),
    [
        (torch.tensor([True, False]), "a mask of 2 responses for a batch of 3"),
        ([0, 3], "there is no response 3 in a batch of 3"),
        ([True, 2], "there is no response True in a batch of 3"),
        (torch.tensor([0.5]), "there is no response 0.5 in a batch of 3"),
    ],
)
def test_a_choice_that_is_none(chosen, what):
    objective, batch = load_objective("gspo"), by_hand([1, 2, 3, 4], [1, 1, -1, 2], [1, 2, 1])
    for holder in (batch, objective.prepare(batch)):
        with pytest.raises(UserError) as caught:
            holder.select(chosen)
        assert (caught.value.what, caught.value.where) == (what, f"{type(holder).__name__}.select")


def test_negative_lengths():
    message = "`lengths` is -1 for response 1; expected: response tokens of each response, 0 or more"
    lengths = torch.tensor([3, -1])
    with pytest.raises(UserError) as caught:
        TokenBatch(tensor(-1, -1), tensor(1, 1), lengths)
    assert (caught.value.what, caught.value.where) == (message, "TokenBatch.lengths")
    with pytest.raises(UserError) as caught:
        Groups(tensor(1, 0), torch.tensor([0, 0]), lengths)
    assert (caught.value.what, caught.value.where) == (message, "Groups.lengths")


def test_devices():
    """`meta` stands for a GPU: a device without values."""
    with pytest.raises(UserError) as caught:
        TokenBatch(tensor(-1, -1), tensor(1, 1).to("meta"), torch.tensor([2]))
    assert caught.value.what == "`advantages` is on meta, and `lengths` on cpu; expected: all tensors on one device"
    assert caught.value.where == "TokenBatch.advantages"
    with pytest.raises(UserError, match="`rewards` is on meta"):
        Groups(tensor(1, 0).to("meta"), torch.tensor([0, 0]), torch.tensor([1, 1]))
    objective, batch = load_objective("grpo_dapo"), by_hand([1, 2], [1, -1])
    plan = objective.prepare(batch)
    assert plan.scale is not None
    there = replace(plan, lengths=plan.lengths.to("meta"), scale=plan.scale.to("meta"))
    with pytest.raises(UserError, match="the plan is on meta and the batch on cpu"):
        objective.loss(batch, there)


class Asked(TorchDispatchMode):
    """Fails on operations that wait for a device: a value on the host, or a size that depends on values."""

    WAITS = ("_local_scalar_dense", "nonzero", "_unique", "unique_dim", "masked_select", "equal", "is_nonzero")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert not name.startswith(self.WAITS), name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("label", ROWS)
def test_no_micro_batch_waits_for_a_device(label):
    """The checks of values in `loss` stay on the device; what is asked for is asked once a mini-batch, in `prepare`."""
    objective = load_objective(ROWS[label])
    batch = make_case(3).batch(objective)
    plan = objective.prepare(batch)
    parts = [(batch.select(part), plan.select(part)) for part in ([0, 2], [1])]
    with pytest.raises(AssertionError, match="_local_scalar_dense"), Asked():
        bool((plan.lengths < 0).any())
    with Asked():
        for own, its_plan in parts:
            objective.loss(own, its_plan)


def test_a_batch_on_a_device_is_made_without_a_look_at_its_values():
    """`meta` has none: a look would raise."""
    batch = make_case(3).batch(load_objective("tepo"))
    values = {part.name: getattr(batch, part.name) for part in fields(batch)}
    moved: dict[str, Any] = {
        name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in values.items()
    }
    assert TokenBatch(**moved).advantages.is_meta


def eps_rows() -> list[str]:
    """Rows whose advantage has an eps in force."""
    found = []
    for name in names():
        advantage = load_objective(name).advantage
        if getattr(advantage, "std", True) and hasattr(advantage, "eps"):
            found.append(name)
    return found


@pytest.mark.parametrize("name", eps_rows())
def test_an_eps_of_0(name):
    """A group of equal rewards has 0, not 0/0. REINFORCE++ and GDPO whiten over the rollout: there, numbers alone."""
    objective = load_objective(name, {"advantage.eps": 0})
    shaped = name.startswith(("gtpo", "grpo_s", "gdpo", "reinforce_pp"))  # by entropies, lengths and the whole rollout
    lengths, ids = torch.tensor([1, 2, 1, 1, 1, 2]), torch.tensor([0, 0, 0, 1, 1, 1])
    for rewards in ([1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 0, 1], [0.1] * 3 + [1, 0, 0], [0.0] * 6):
        groups = Groups(tensor(*rewards), ids, lengths, torch.linspace(0.2, 1, 8).double(), lengths > 0, 4)
        found = objective.advantages(groups)
        assert found.isfinite().all(), rewards
        if not shaped:
            equal = torch.tensor([len(set(rewards[:3])) == 1] * 4 + [len(set(rewards[3:])) == 1] * 4)
            assert (found[equal] == 0).all(), rewards


@pytest.mark.parametrize("name", names())
def test_a_reward_that_is_no_number(name):
    """It makes advantages of its group NaN, MaxRL's too: a mean of -inf passed for a group without success."""
    case, objective = make_case(0), load_objective(name)
    for reward in (torch.inf, -torch.inf, torch.nan):
        rewards = case.rewards.clone()
        rewards[1] = reward
        found = objective.advantages(replace(case.groups(), rewards=rewards))
        assert found[: int(case.lengths[:3].sum())].isnan().any(), reward


@pytest.mark.parametrize("label", ROWS)
def test_a_log_prob_of_plus_infinity(label):
    """No probability is infinite: NaN, where the bounds of log-ratios made it a finite loss."""
    objective = load_objective(ROWS[label])
    batch = make_case(0).batch(objective)
    for name in ("logprobs", "old_logprobs", "initial_logprobs", "sampler_logprobs"):
        values = getattr(batch, name).detach().clone()
        values[2] = torch.inf
        given = replace(batch, **{name: values})
        loss = objective.loss(given, objective.prepare(given)).loss
        assert loss.isnan() == (name in ("logprobs", "old_logprobs") or getattr(objective.needs, name)), name


def test_no_maximum_over_no_token():
    objective = load_objective("grpo_dapo")
    batch = TokenBatch(tensor(), tensor(), torch.tensor([0]), logprobs=tensor().requires_grad_())
    means = objective.loss(batch, objective.prepare(batch)).metrics.means()
    assert "actor/ratio_max" not in means
    assert all(value == 0 for value in means.values())
