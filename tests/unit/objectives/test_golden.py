"""Every row against its literal formula: value, gradient by log-probs (through the logits' softmax) and by logits,
in float64."""

import math
import statistics
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import yaml
from torch import Tensor

from tepo.objectives import Objective, load_objective, names
from tepo.objectives.loading import text
from tepo.objectives.testing.case import TabularCase, make_case
from tests.invariants.rows import changed
from tests.unit.objectives.literal import LITERAL, View
from tests.unit.objectives.literal_newer import (
    NEWER,
    icepop,
    masked_sequences,
    opsm,
    rejected,
    tis,
    top_entropy,
    trust_region,
)
from tests.unit.objectives.literal_selected import SELECTED, clip_cov, kl_cov, steer

ROWS = LITERAL | SELECTED | NEWER


def test_every_row_has_a_literal():
    assert set(ROWS) == set(names())


def compare(
    objective: Objective, literal: Callable[[View], Tensor], case: TabularCase, salt: int = 0
) -> dict[str, Tensor]:
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
    for seed in range(5):
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


MORE = {
    "icepop": ("icepop", {"correction": {"low": 0.98, "high": 1.05}}, icepop(0.98, 1.05)),
    "whole responses": (
        "tis",
        {"correction": {"kind": "masked", "level": "sequence", "low": 0.9, "high": 1.1}},
        masked_sequences(0.9, 1.1),
    ),
    "whole responses over their mean": (
        "tis",
        {"correction": {"kind": "masked", "level": "sequence", "low": 0.9, "high": 1.1, "normalize": True}},
        masked_sequences(0.9, 1.1, normalize=True),
    ),
    "floor, cap and mean": (
        "tis",
        {"correction": {"floor": 0.95, "cap": 1.05, "normalize": True}},
        tis(0.95, 1.05, normalize=True),
    ),
    "mean of k1": (
        "seq_mask_tis",
        {"correction": {"low": 0.97, "high": 1.03, "cap": 1.02}},
        rejected(lambda gaps: 0.97 <= math.exp(statistics.fmean(gaps)) <= 1.03, lambda g: min(math.exp(g), 1.02)),
    ),
    "sum of k3": (
        "trm",
        {"correction": {"estimator": "k3", "over": "sum", "high": 0.01}},
        rejected(lambda gaps: sum(math.exp(g) - 1 - g for g in gaps) <= 0.01, lambda g: 1.0),
    ),
    "largest k2": (
        "trm",
        {"correction": {"high": 0.006}},
        rejected(lambda gaps: max(g * g / 2 for g in gaps) <= 0.006, lambda g: 1.0),
    ),
    "largest k2 by the current policy": (
        "trm_current",
        {"weight": {"high": 0.2}},
        trust_region(lambda gaps: max(g * g / 2 for g in gaps) <= 0.2),
    ),
    "mean k3 by the current policy": (
        "trm_current",
        {"weight": {"estimator": "k3", "over": "mean", "high": 0.1}},
        trust_region(lambda gaps: statistics.fmean(math.exp(g) - 1 - g for g in gaps) <= 0.1),
    ),
    "off-policy responses": ("opsm", {"weight": {"threshold": 0.02}}, opsm(0.02)),
    "half of the tokens": ("top_entropy", {"weight": {"fraction": 0.5}}, top_entropy(0.5)),
    "half of the tokens, over these": (
        "top_entropy_v2",
        {"weight": {"fraction": 0.5}},
        top_entropy(0.5, over_kept=True),
    ),
}


@pytest.mark.parametrize("label", MORE)
def test_masks_that_act(label):
    """Bounds between the values of the case: some tokens or responses stay, some leave."""
    name, changes, literal = MORE[label]
    tokens = compare(load_objective(changed(name, changes)), literal, make_case(3, repeat=2))
    if "floor" not in label:
        factor = tokens["correction"] if "correction" in tokens else tokens["weight"]
        assert 0 < (factor == 0).sum() < len(factor)
