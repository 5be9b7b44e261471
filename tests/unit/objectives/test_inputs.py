"""What a batch is made of: what is read and what is refused, and numbers at the edge: any log-probs, nothing at all,
responses that were cut, NaN, and dtypes of half precision."""

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tepo.common.errors import UserError
from tepo.objectives import Groups, Needs, Objective, TokenBatch, load_objective, names
from tepo.objectives.batch import PER_TOKEN
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
        with pytest.raises(UserError, match=what):
            plan.select(other)


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
        ("group_ids", torch.ones(9), "is float32; expected: integer [S] = [9], one per response"),
        ("max_new_tokens", 0, "is 0; expected: a whole number of tokens, at least 1"),
    ],
)
def test_another_type_shape_or_dtype(name: str, value: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        replace(make_case(3).batch(load_objective("tepo")), **{name: value})
    assert error.value.what == f"`{name}` {message}"


def test_tensors_that_do_not_fit_together() -> None:
    """`meta` stands for a GPU: a device without values."""
    two, ids, objective = torch.zeros(2), torch.zeros(2, dtype=torch.int64), load_objective("gtpo")
    batch = by_hand([1, 2], [1, -1], [1, 1])
    plan = objective.prepare(batch)
    there = replace(plan, lengths=plan.lengths.to("meta"), scale=plan.scale.to("meta"))
    for make, said in (
        (lambda: TokenBatch(two, two, torch.tensor([3, -1])), "`lengths` is -1 for response 1"),
        (lambda: TokenBatch(two, two.to("meta"), torch.tensor([2])), "`advantages` is on meta, and `lengths` on cpu"),
        (lambda: objective.advantages(Groups(two, ids, ids + 3, torch.ones(4))), "the lengths add up to 6"),
        (lambda: objective.loss(batch.select([0]), plan), "the plan is of 2 responses and the batch"),
        (lambda: objective.loss(batch, there), "the plan is on meta and the batch on cpu"),
    ):
        with pytest.raises(UserError, match=said):
            make()


# the edge -------------------------------------------------------------------------------------------------------------
def any_logprobs(size: int, draw: torch.Generator) -> Tensor:
    """0, -inf, and numbers down to -3 or to -10,000."""
    uniform = -torch.rand(size, generator=draw)
    kinds = torch.stack([0 * uniform, torch.full_like(uniform, -torch.inf), 3 * uniform, 1e4 * uniform])
    return kinds.gather(0, torch.randint(4, (1, size), generator=draw))[0]


@pytest.mark.parametrize("label", ROWS)
def test_any_log_probs(label):
    """One rollout has nothing but an empty response."""
    case, objective, draw = make_case(0, dtype=torch.float32), ROWS[label], torch.Generator().manual_seed(0)
    for chosen in (*[range(9)] * 5, [3]):
        batch = case.batch(objective).select(chosen)
        size = len(batch.advantages)
        values = {name: any_logprobs(size, draw) for name in ("logprobs", *PER_TOKEN) if name.endswith("logprobs")}
        values |= {"entropies": 12 * torch.rand(size, generator=draw), "full_kl": 50 * torch.rand(size, generator=draw)}
        leaves = {name: values[name].requires_grad_() for name in ("logprobs", "entropies", "full_kl")}
        out = loss_of(objective, replace(batch, **values))
        assert out.loss.isfinite()
        gradients = torch.autograd.grad(out.loss, list(leaves.values()), allow_unused=True)
        assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)
        means = out.metrics.means()
        assert all(value == value for value in means.values()), means
    assert "actor/ratio_max" not in means


@pytest.mark.parametrize("label", ROWS)
def test_what_was_cut_leaves_no_trace(label):
    """A filtered row is the row of what is left, though sums over a group that was cut whole are 0."""
    case = make_case(5, repeat=2)
    case = replace(case, finished=case.finished & (torch.arange(18) % 9 < 6) & (torch.arange(18) != 1))
    found = []
    for keep, chosen in (("finished", torch.ones(18, dtype=torch.bool)), ("", case.finished)):
        objective = replace(ROWS[label], keep=keep)
        out = loss_of(objective, case.batch(objective).select(chosen), salt=3)
        means = {name: value for name, value in out.metrics.means().items() if name != "actor/ratio_max"}
        found.append((out.loss, torch.autograd.grad(out.loss, case.logits)[0], torch.tensor([*means.values()])))
    for filtered, left in zip(*found, strict=True):
        torch.testing.assert_close(filtered, left, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("J", ["w*A/finished", "exp(prefix_mean_i(d/finished))*A", "w*A/sum_gb(finished)"])
def test_what_was_cut_may_be_infinite(J):
    case = make_case(1)
    made = Objective("mine", {"A": "R - mean_g(R)", "w": "exp(d)", "J": J}, {}, keep="finished")
    batch = case.batch(made)
    out = loss_of(made, batch)
    (slope,) = torch.autograd.grad(out.loss, case.logits)
    assert slope.isfinite().all()
    assert (slope[batch.sequence == 6] == 0).all()
    assert not slope[batch.sequence == 5].eq(0).all()


# what is no number ----------------------------------------------------------------------------------------------------
def broken(values: Tensor, place: int, value: float = torch.nan) -> Tensor:
    values = values.detach().clone()
    values[place] = value
    return values


@pytest.mark.parametrize("label", ROWS)
def test_what_is_no_number_reaches_the_loss_where_it_is_read(label):
    """A NaN, and the infinities that cannot be: of a reward (MaxRL took a mean of -inf for that of a group without
    success), of a probability, of an entropy."""
    objective, case = ROWS[label], make_case(0)
    groups, batch = case.groups(), case.batch(objective)
    for value in (torch.inf, -torch.inf, torch.nan):
        for place in (0, 1, -1):  # a success, a failure of its group, and one of a group without a success
            found = objective.advantages(replace(groups, rewards=broken(case.rewards, place, value)))
            assert found[groups.sequence == torch.arange(len(case.lengths))[place]].isnan().all(), (value, place)
    always = ("logprobs", "old_logprobs", "advantages")
    for name in PER_TOKEN:
        read = name in always or getattr(objective.needs, name)
        for place, value in ((2, torch.inf), (1, -torch.inf), (0, torch.nan), (-1, torch.nan)):
            may_be = {torch.inf: name == "full_kl", -torch.inf: name == "full_kl" or name.endswith("logprobs")}
            if not may_be.get(value):  # off the anchor's support, and log 0
                spoilt = replace(batch, **{name: broken(getattr(batch, name), place, value)})
                assert loss_of(objective, spoilt).loss.isnan() == read, (name, value)
    if "old_entropies" in objective.inputs["rollout"]:
        spoilt = objective.advantages(replace(groups, old_entropies=broken(groups.old_entropies, 0)))
        assert spoilt[:1].isnan().all()


def test_its_gradient_is_nan_too():
    """A mask that a NaN switched off left gradients that looked sound."""
    objective, case = ROWS["tepo"], make_case(0)
    batch = case.batch(objective)
    loss = loss_of(objective, replace(batch, entropies=broken(batch.entropies, -1))).loss
    assert torch.autograd.grad(loss, case.logits)[0].isnan().any()


# dtypes ---------------------------------------------------------------------------------------------------------------
HALF = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_of_4096_tokens(name, dtype):
    """Four responses on-policy, as the first mini-batch of a step: loss and gradient are those of the same numbers in
    float64."""
    objective, draw = load_objective(name), torch.Generator().manual_seed(1)
    entropies, old, full_kl = (torch.rand(4 * 4096, generator=draw).to(dtype) for _ in range(3))
    given = dict.fromkeys(("old_logprobs", "sampler_logprobs"), -2 * old) | {"full_kl": full_kl}
    given |= {"initial_logprobs": -2 * old - 0.125, "teacher_logprobs": -2 * old + 0.25}
    given |= {"entropies": entropies * 0.99, "old_entropies": entropies}
    results, lengths, ids = [], torch.full((4,), 4096), torch.zeros(4, dtype=torch.int64)
    rewards, rest = torch.tensor([1, 0, 1, 0], dtype=dtype), {"finished": ids < 1, "max_new_tokens": 4096}
    advantages = objective.advantages(Groups(rewards, ids, lengths, entropies, values=torch.full((4,), 0.25), **rest))
    for wide in (dtype, torch.float64):
        logprobs = (-2 * old).to(wide).requires_grad_()
        values = {name: value.to(wide) for name, value in given.items()} | {"group_ids": ids, "uid": torch.arange(4)}
        batch = TokenBatch(advantages=advantages, lengths=lengths, logprobs=logprobs, **values, **rest)
        loss = loss_of(objective, batch, salt=1).loss
        results.append((loss.item(), torch.autograd.grad(loss, logprobs)[0]))
    (loss, slope), (exact, exact_slope) = results
    assert slope.dtype == dtype
    assert loss == pytest.approx(exact, rel=1e-5, abs=1e-6)
    # float16 holds nothing below 6e-8: the gradient's own dtype is the limit
    torch.testing.assert_close(slope.double(), exact_slope, rtol=1e-2, atol=6e-8)
