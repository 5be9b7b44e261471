"""What `needs` names is all that a row reads, and the message where something is missing or is of another kind."""

from typing import Any

import pytest
import torch

from tepo.common.errors import UserError
from tepo.objectives import Groups, Objective, TokenBatch, load_objective
from tepo.objectives.testing.case import TabularCase, make_case
from tests.invariants.rows import SPLIT_DEPENDENT, changed, variants

ROWS = variants() | {label: changed(*change) for label, change in SPLIT_DEPENDENT.items()}
ALWAYS_GROUPS, ALWAYS_BATCH = ("rewards", "group_ids", "lengths"), ("old_logprobs", "advantages", "lengths", "logprobs")


def run(objective: Objective, case: TabularCase, given: tuple[str, ...]) -> torch.Tensor:
    """The loss with these optional fields and no others."""
    everything = case.groups()
    fields = {name: getattr(everything, name) for name in (*ALWAYS_GROUPS, *given) if hasattr(everything, name)}
    advantages = objective.advantages(Groups(**fields))
    batch = case.batch(objective, advantages)
    batch = TokenBatch(**{name: getattr(batch, name) for name in (*ALWAYS_BATCH, *given)})
    return objective.loss(batch, objective.prepare(batch)).loss


@pytest.mark.parametrize("label", ROWS)
def test_a_row_reads_what_it_needs_and_nothing_else(label: str) -> None:
    objective, case = load_objective(ROWS[label]), make_case(3)
    needed = objective.needs.given
    batch = case.batch(objective)
    expected = objective.loss(batch, objective.prepare(batch)).loss
    torch.testing.assert_close(run(objective, case, needed), expected, rtol=0, atol=0)
    for name in needed:
        with pytest.raises(UserError, match=f"reads `{name}`, which is not given; expected: ") as error:
            run(objective, case, tuple(other for other in needed if other != name))
        assert f"{name}=…)" in error.value.fix


def batch_with(**values: Any) -> TokenBatch:
    objective, case = load_objective("tepo"), make_case(3)
    return TokenBatch(**vars(case.batch(objective)) | values)


TOKENS, COUNT = 24, 9
SHAPES = [
    ("entropies", torch.ones(4, 6), "has the shape [4, 6]; expected: float [N] = [24], one a response token"),
    ("logprobs", torch.ones(23), "has the shape [23]; expected: float [N] = [24], one a response token"),
    ("old_logprobs", [0.0] * TOKENS, "is no tensor but list; expected: float [N] = [24], one a response token"),
    ("advantages", torch.ones(()), "has the shape []; expected: float [N], one a response token"),
    ("lengths", torch.ones(COUNT), "is float32; expected: int64 [S], one a response"),
    ("uid", torch.arange(8), "has the shape [8]; expected: int64 [S] = [9], one a response"),
    ("uid", torch.arange(COUNT).int(), "is int32; expected: int64 [S] = [9], one a response"),
    ("group_ids", torch.ones(COUNT), "is float32; expected: integer [S] = [9], one a response"),
    ("finished", torch.ones(COUNT), "is float32; expected: bool [S] = [9], one a response"),
    ("sampler_logprobs", torch.ones(TOKENS).cfloat(), "is complex64; expected: float [N] = [24], one a response token"),
    ("max_new_tokens", 0, "is 0; expected: a whole number of tokens, at least 1"),
]


@pytest.mark.parametrize(("name", "value", "message"), SHAPES)
def test_another_type_shape_or_dtype(name: str, value: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        batch_with(**{name: value})
    assert error.value.what == f"`{name}` {message}"
    assert error.value.where == f"TokenBatch.{name}"


def test_a_padded_tensor_gets_the_way_to_flatten_it() -> None:
    with pytest.raises(UserError, match=r"try: take the response tokens of a padded tensor: values\[mask\]"):
        batch_with(old_entropies=torch.ones(COUNT, 7))


def test_rewards_and_lengths_of_groups() -> None:
    ids, lengths = torch.tensor([0, 0, 0]), torch.tensor([2, 1, 2])
    with pytest.raises(UserError, match=r"`rewards` has the shape \[2\]; expected: float \[S\] = \[3\]"):
        Groups(torch.ones(2), ids, lengths)
    groups = Groups(torch.tensor([1, 0, 0]), ids, lengths, torch.ones(4))
    with pytest.raises(UserError, match=r"`old_entropies` has the shape \[4\], and the lengths add up to 5"):
        load_objective("gtpo").advantages(groups)


def test_lengths_that_do_not_add_up_and_a_plan_of_others() -> None:
    objective = load_objective("tepo")
    batch = batch_with()
    with pytest.raises(UserError, match=r"`advantages` has the shape \[24\], and the lengths add up to 25"):
        objective.prepare(batch_with(lengths=batch.lengths + torch.tensor([1] + [0] * 8)))
    with pytest.raises(UserError, match="the plan is of 9 responses and the batch of 2"):
        objective.loss(batch.select([0, 1]), objective.prepare(batch))
