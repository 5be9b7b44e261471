"""Every row against its literal formula: value, gradient by log-probs (through the logits' softmax) and by logits,
in float64."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import yaml
from torch import Tensor

from tepo.objectives import Objective, load_objective, names
from tepo.objectives.loading import text
from tests.unit.objectives.case import Case, make_case
from tests.unit.objectives.literal import LITERAL, View
from tests.unit.objectives.literal_selected import SELECTED, clip_cov, kl_cov, steer

ROWS = LITERAL | SELECTED


def test_every_row_has_a_literal():
    assert set(ROWS) == set(names())


def compare(objective: Objective, literal: Callable[[View], Tensor], case: Case, salt: int = 0) -> dict[str, Tensor]:
    """Loss and logit gradient of both; returns the diagnostics."""
    batch = case.batch(objective)
    out = objective.loss(batch, objective.prepare(batch, salt=salt))
    (ours,) = torch.autograd.grad(out.loss, case.logits)
    value = -literal(View(case))
    (theirs,) = torch.autograd.grad(value, case.logits)
    torch.testing.assert_close(out.loss, value, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    return out.tokens


@pytest.mark.parametrize("name", sorted(ROWS))
def test_value_and_logit_gradient(name):
    clipped = []
    for seed in range(3):
        tokens = compare(load_objective(name), ROWS[name], make_case(seed))
        clipped.append(tokens.get("clipped", torch.tensor([True, False])))
    assert torch.cat(clipped).any(), "no case outside the clip"
    assert not torch.cat(clipped).all(), "no case inside the clip"


@pytest.mark.parametrize("name", sorted(ROWS))
def test_gradient_by_log_probs(name):
    """The log-probs as leaves: the coefficient that `tepo explain` prints."""
    case, objective = make_case(11), load_objective(name)
    batch = replace(case.batch(objective), full_kl=None)
    leaf = batch.logprobs.detach().requires_grad_()
    batch = replace(batch, logprobs=leaf, entropies=batch.entropies.detach())
    (ours,) = torch.autograd.grad(objective.loss(batch, objective.prepare(batch)).loss, leaf)
    view = View(case)
    other = leaf.detach().clone().requires_grad_()
    view.lp = [list(other[begin:end]) for begin, end in zip(case.offsets, case.offsets[1:], strict=False)]
    view.h = [[value.detach() for value in row] for row in view.h]
    (theirs,) = torch.autograd.grad(-ROWS[name](view), other)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def row(name: str, **changes) -> dict:
    """A shipped row with settings changed: axis={key: value}."""
    mapping = yaml.safe_load(text(name))
    for axis, settings in changes.items():
        mapping[axis] = {**mapping.get(axis, {}), **settings}
    return mapping


@pytest.mark.parametrize("salt", [0, 5, -(2**63)])
def test_clip_cov_draws_many(salt):
    objective = load_objective(row("clip_cov", weight={"fraction": 0.2, "low": 0.1}))
    tokens = compare(objective, clip_cov(0.2, 0.1, salt=salt), make_case(3, repeat=2), salt)
    assert (tokens["weight"] == 0).sum() == int(0.2 * 48)


def test_clip_cov_draws_all_candidates_when_they_are_few():
    compare(load_objective(row("clip_cov", weight={"fraction": 1.0})), clip_cov(1.0), make_case(4))


def test_kl_cov_takes_the_top_share():
    tokens = compare(load_objective(row("kl_cov", penalty={"fraction": 0.25})), kl_cov(0.25), make_case(3))
    assert tokens["kl_mask"].sum() == 6


@pytest.mark.parametrize("form", ["code", "theorem"])
@pytest.mark.parametrize(("shape", "ceiling"), [("exponential", 1.0), ("linear", 1.2)])
def test_steer_forms(form, shape, ceiling):
    objective = load_objective(row("steer", weight={"form": form, "shape": shape, "ceiling": ceiling}))
    compare(objective, steer(form, shape, ceiling=ceiling), make_case(5))
