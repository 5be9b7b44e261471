from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tepo.common.errors import UserError
from tepo.objectives import Groups, Needs, TokenBatch, load_objective
from tepo.objectives.testing.case import make_case
from tests.invariants.rows import variants
from tests.unit.objectives.flat import by_hand, loss_of

ROWS = variants()
LEAVES = ("old_logprobs", "advantages", "old_entropies", "initial_logprobs", "teacher_logprobs", "sampler_logprobs")


@pytest.mark.parametrize("label", ROWS)
def test_nothing_but_the_policy_has_a_gradient(label):
    """The gradient by old log-probs, advantages and all else that a trainer may have left in its graph is none."""
    objective, case = ROWS[label], make_case(3)
    batch = case.batch(objective)
    leaves = {name: getattr(batch, name).detach().clone().requires_grad_() for name in LEAVES}
    attached = replace(case.batch(objective), **{name: 1 * leaf for name, leaf in leaves.items()})
    loss = loss_of(objective, attached).loss
    assert torch.equal(loss, loss_of(objective, batch).loss)
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    assert found == (None,) * len(leaves)


def test_numbers_or_a_mask_select():
    objective, batch = load_objective("gspo"), by_hand([1, 2, 3, 4], [1, 1, -1, 2], [1, 2, 1])
    plan = objective.prepare(batch)
    for chosen in (torch.tensor([False, True, True]), [False, True, True], torch.tensor([1, 2]), range(1, 3)):
        part = batch.select(chosen)
        assert (part.lengths.tolist(), part.advantages.tolist()) == ([2, 1], [1, -1, 2])
        assert plan.select(chosen).lengths.tolist() == [2, 1]
    assert batch.select([]).lengths.tolist() == batch.select(torch.zeros(3) > 0).lengths.tolist() == []
    for other, what in ((torch.tensor([True, False]), "a mask of 2"), ([0, 3], "no response 3"), ([True, 2], "True")):
        for holder in (batch, plan):
            with pytest.raises(UserError, match=what):
                holder.select(other)


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
    objective = ROWS[label]
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
    moved = {name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in values.items()}
    assert TokenBatch(**moved).advantages.is_meta


# needs ----------------------------------------------------------------------------------------------------------------
def lacking(given: Any, names: Iterable[str]) -> Any:
    """A rollout or a batch without what need not be given and has one of these names."""
    optional = {part.name for part in fields(given) if part.default is None} & set(names)
    return replace(given, **dict.fromkeys(optional))


@pytest.mark.parametrize("label", ROWS)
def test_what_needs_names_is_read_and_nothing_else(label: str) -> None:
    """And what is missing is said, with what is expected."""
    objective, case = ROWS[label], make_case(3, repeat=4)
    needs, groups, batch = objective.needs, case.groups(), case.batch(ROWS[label])

    def run(*without: str, **changes: Any) -> torch.Tensor:
        given, rollout = lacking(replace(batch, **changes), without), lacking(groups, without)
        before = given if needs.prepass else lacking(given, ("logprobs", "entropies", "full_kl"))
        loss = objective.loss(given, objective.prepare(before, salt=3)).loss
        gradient = torch.autograd.grad(loss, case.logits, retain_graph=True)[0]
        return torch.cat([objective.advantages(rollout), gradient.flatten()])

    expected = run()
    assert torch.equal(run(*{part.name for part in fields(Needs)} - set(needs.given)), expected)
    if not needs.entropy_gradient:
        assert torch.equal(run(entropies=batch.entropies.detach()), expected)
    for name in needs.given:
        with pytest.raises(UserError, match=f"reads `{name}`, which is not given; expected: ") as caught:
            run(name)
        assert caught.value.fix.startswith(("give TokenBatch(", "give Groups("))


# what does not fit ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [  # of 24 tokens in 9 responses
        ("entropies", torch.ones(4, 6), "has the shape [4, 6]; expected: float [N] = [24], one per response token"),
        ("old_logprobs", [0.0] * 24, "is no tensor but list; expected: float [N] = [24], one per response token"),
        ("group_ids", torch.ones(9), "is float32; expected: integer [S] = [9], one per response"),
        ("finished", torch.ones(9), "is float32; expected: bool [S] = [9], one per response"),
        ("full_kl", torch.ones(24).cfloat(), "is complex64; expected: float [N] = [24], one per response token"),
        ("max_new_tokens", 0, "is 0; expected: a whole number of tokens, at least 1"),
    ],
)
def test_another_type_shape_or_dtype(name: str, value: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        replace(make_case(3).batch(load_objective("tepo")), **{name: value})
    assert error.value.what == f"`{name}` {message}"
    assert error.value.where == f"TokenBatch.{name}"


def test_tensors_that_do_not_fit_together() -> None:
    """`meta` stands for a GPU: a device without values."""
    objective, two, ids = load_objective("gtpo"), torch.zeros(2), torch.zeros(2, dtype=torch.int64)
    batch = by_hand([1, 2], [1, -1], [1, 1])
    plan = load_objective("grpo_dapo").prepare(batch)
    there = replace(plan, lengths=plan.lengths.to("meta"), scale=plan.scale.to("meta"))
    for make, said in (
        (lambda: TokenBatch(two, two, torch.tensor([3, -1])), "`lengths` is -1 for response 1"),
        (lambda: Groups(two, ids, torch.tensor([3, -1])), "`lengths` is -1 for response 1"),
        (lambda: TokenBatch(two, two.to("meta"), torch.tensor([2])), "`advantages` is on meta, and `lengths` on cpu"),
        (lambda: objective.advantages(Groups(two, ids, ids + 3, torch.ones(4))), "the lengths add up to 6"),
        (lambda: load_objective("grpo_dapo").loss(batch.select([0]), plan), "the plan is of 2 responses and the batch"),
        (lambda: load_objective("grpo_dapo").loss(batch, there), "the plan is on meta and the batch on cpu"),
    ):
        with pytest.raises(UserError, match=said):
            make()
