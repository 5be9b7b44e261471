from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tepo.objectives import Groups, Objective, TokenBatch
from tepo.objectives.batch import PER_TOKEN
from tepo.objectives.testing.case import TabularCase, make_case
from tests.invariants.rows import variants
from tests.unit.objectives.flat import by_hand

ROWS = variants()
LOGPROB = st.one_of(st.just(0.0), st.just(-torch.inf), st.floats(-1e4, 0.0), st.floats(-3.0, 0.0))


@st.composite
def batches(draw, dtype: torch.dtype) -> tuple[Groups, dict]:
    """Up to 5 responses of up to 3 tokens with any log-probs."""
    lengths = draw(st.lists(st.integers(0, 3), min_size=0, max_size=5))
    total, count = sum(lengths), len(lengths)

    def numbers(strategy, size: int = total) -> torch.Tensor:
        return torch.tensor(draw(st.lists(strategy, min_size=size, max_size=size)), dtype=dtype)

    entropy = st.floats(0.0, 12.0)
    rewards = numbers(st.sampled_from([0.0, 1.0, -1.0, 0.3]), count)
    ids = torch.tensor(draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)), dtype=torch.int64)
    finished = torch.tensor(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=torch.bool)
    old_entropies = numbers(entropy)
    lengths, values = torch.tensor(lengths, dtype=torch.int64), numbers(st.floats(0.0, 1.0), count)
    groups = Groups(rewards, ids, lengths, old_entropies, finished, 3, values=values)
    rest = {name: numbers(LOGPROB) for name in ("logprobs", *PER_TOKEN) if name.endswith("logprobs")}
    rest |= {"entropies": numbers(entropy), "old_entropies": old_entropies, "full_kl": numbers(st.floats(0.0, 50.0))}
    return groups, rest


def run(objective, groups: Groups, values: dict) -> None:
    leaves = {name: values[name].clone().requires_grad_() for name in ("logprobs", "entropies", "full_kl")}
    advantages = objective.advantages(groups)
    assert advantages.isfinite().all()
    uid = torch.arange(len(groups.lengths))
    shared = {name: getattr(groups, name) for name in ("lengths", "group_ids", "finished", "max_new_tokens")}
    batch = TokenBatch(**(values | leaves), **shared, advantages=advantages, uid=uid)
    out = objective.loss(batch, objective.prepare(batch))
    assert out.loss.isfinite()
    assert out.loss.requires_grad
    gradients = torch.autograd.grad(out.loss, list(leaves.values()), allow_unused=True)
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)
    means = out.metrics.means()
    assert all(value == value for value in means.values()), means


@pytest.mark.parametrize("label", ROWS)
@settings(max_examples=6, deadline=None, derandomize=True)
@given(case=batches(torch.float32))
def test_any_log_probs(label, case):
    run(ROWS[label], *case)


@pytest.mark.parametrize("label", ROWS)
def test_nothing_in_the_batch_gives_zero_with_a_graph(label):
    """No response, or two without a token."""
    empty = torch.empty(0, dtype=torch.float64)
    for count in (0, 2):
        whole = torch.zeros(count, dtype=torch.int64)
        ones = torch.ones(count, dtype=torch.float64)
        groups = Groups(ones, whole, whole, empty, whole > 0, 3, values=ones)
        run(ROWS[label], groups, dict.fromkeys({*PER_TOKEN} - {"advantages"}, empty))


@pytest.mark.parametrize("label", ROWS)
def test_what_was_cut_leaves_no_trace(label):
    """A filtered row is the row of what is left, though sums over a group that was cut whole are 0."""
    case = make_case(5, repeat=2)
    case = replace(case, finished=case.finished & (torch.arange(18) % 9 < 6) & (torch.arange(18) != 1))
    found = []
    for keep, chosen in (("finished", torch.ones(18, dtype=torch.bool)), ("", case.finished)):
        objective = replace(ROWS[label], keep=keep)
        batch = case.batch(objective).select(chosen)
        out = objective.loss(batch, objective.prepare(batch, salt=3))
        means = {name: value for name, value in out.metrics.means().items() if name != "actor/ratio_max"}
        found.append((out.loss, torch.autograd.grad(out.loss, case.logits)[0], torch.tensor([*means.values()])))
    for filtered, left in zip(*found, strict=True):
        torch.testing.assert_close(filtered, left, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "J", ["w*A/finished", "exp(prefix_mean_i(d/finished))*A", "w*A/sum_gb(finished)", "w*A*prefix_mean_i(d)/finished"]
)
def test_what_was_cut_may_be_infinite(J):
    case = make_case(1)
    made = Objective("mine", {"A": "R - mean_g(R)", "w": "exp(d)", "J": J}, {}, keep="finished")
    batch = case.batch(made)
    out = made.loss(batch, made.prepare(batch))
    assert out.loss.isfinite()
    (slope,) = torch.autograd.grad(out.loss, case.logits)
    assert slope.isfinite().all()
    assert all(value == value for value in out.metrics.means().values())
    assert (slope[batch.sequence == 6] == 0).all()
    assert not slope[batch.sequence == 5].eq(0).all()


# what is no number ----------------------------------------------------------------------------------------------------
def broken(values: torch.Tensor, place: int, value: float = torch.nan) -> torch.Tensor:
    values = values.detach().clone()
    values[place] = value
    return values


def loss_of(objective: Objective, case: TabularCase, **changes: torch.Tensor) -> torch.Tensor:
    """The loss of the case, its batch changed."""
    batch = replace(case.batch(objective), **changes)
    return objective.loss(batch, objective.prepare(batch)).loss


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
                loss = loss_of(objective, case, **{name: broken(getattr(batch, name), place, value)})
                assert loss.isnan() == read, (name, value)
    if "old_entropies" in objective.inputs["rollout"]:
        spoilt = objective.advantages(replace(groups, old_entropies=broken(groups.old_entropies, 0)))
        assert spoilt[:1].isnan().all()


def test_its_gradient_is_nan_too():
    """A mask that a NaN switched off left gradients that looked sound."""
    objective, case = ROWS["tepo"], make_case(0)
    batch = case.batch(objective)
    assert batch.entropies is not None
    loss = loss_of(objective, case, entropies=broken(batch.entropies, -1))
    assert torch.autograd.grad(loss, case.logits)[0].isnan().any()


def test_no_maximum_over_no_token():
    batch, objective = by_hand([], [], [0]), ROWS["grpo_dapo"]
    means = objective.loss(batch, objective.prepare(batch)).metrics.means()
    assert "actor/ratio_max" not in means
    assert all(value == 0 for value in means.values())
