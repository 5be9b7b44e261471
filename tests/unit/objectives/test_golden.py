"""Every row, and every reading that has one, against its literal formula: value, and gradient by logits, in float64."""

import math
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tepo.objectives import Objective, load_objective, names
from tepo.objectives.testing.case import TabularCase, make_case
from tests.invariants.rows import LINEAR, THEOREM
from tests.unit.objectives import literal
from tests.unit.objectives import literal_others as other
from tests.unit.objectives.flat import loss_of
from tests.unit.objectives.literal import View, clipped, mean, weighted

Case = tuple[str, dict[str, Any], Callable[[View], Tensor]]
ROWS = literal.LITERAL | other.OTHERS
UNCLIPPED = {"reinforce", "gpg", "rloo", "opo", "dro", "kl_cov", "sapo", "vespo", "vespo_sampler", "drpo", "mhpo"}
UNCLIPPED |= {"importance_sampling", "topr", "bypass_pg_is", "maspo", "gvpo", "target_po", "dgpo", "distillation"}


def test_every_row_has_a_literal():
    assert set(ROWS) == set(names())


def compare(
    objective: Objective, expected: Callable[[View], Tensor], case: TabularCase, salt: int = 0
) -> dict[str, Tensor]:
    """Loss and logit gradient of both; returns the diagnostics."""
    out = loss_of(objective, case.batch(objective), salt)
    (ours,) = torch.autograd.grad(out.loss, case.logits)
    value = -expected(View(case))
    (theirs,) = torch.autograd.grad(value, case.logits)
    torch.testing.assert_close(out.loss, value, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    return out.tokens


@pytest.mark.parametrize("name", sorted(ROWS))
def test_value_and_logit_gradient(name):
    held = torch.cat([compare(load_objective(name), ROWS[name], make_case(seed))["clipped"] for seed in range(5)])
    assert held.any() == (name not in UNCLIPPED), "cases outside the clip"
    assert not held.all(), "no case inside the clip"


# constants that no case of these few tokens reaches, as their sources have them
SELDOM: dict[str, dict[str, float]] = {
    **{key: {"high": 0.28, "tol": 1e-6} for key in ("tepo", "tepo_kl_negative", "tepo_kl_both")},
    **{key: {"high": 0.28} for key in ("tepo_no_kl", "tepo_kl_all", "tepo_max_entropy", "tepo_min_entropy")},
    **{key: {"high": 0.28} for key in ("seq_mean_token_mean", "seq_mean_token_sum")},
    **{key: {"low": 0.2} for key in ("dppo_tv", "dppo_squared_kl", "length_penalty")},
    **{key: {"delta": 2.5} for key in ("trm", "trm_current")},
    **{key: {"eps": 1e-8} for key in ("reinforce_pp", "reinforce_pp_no_group")},
    "chained_rejection": {"cap": 2, "alpha": 0.6, "beta": 1.6, "delta": 2.5},
    "clip_cov": {"alpha": 1, "beta": 5, "share": 2e-4},
    "kl_cov": {"share": 2e-3},
    "dppo_kl": {"low": 0.05},
    "ipo": {"high": 0.1},
    "gtpo_clipped": {"kappa": 2},
    "icepop": {"alpha": 0.5, "beta": 5},
    "mis": {"cap": 2, "alpha": 0.5, "beta": 2, "veto": 1e-4},
    "kpop": {"phi": 2},
    "maspo": {"most": 10, "risk_low": 0.1, "risk_high": 10},
    "opsm": {"delta": 0.5},
    "outlier_mask": {"alpha": 1e-4, "beta": 100},
    "seq_mis": {"cap": 3},
    "seq_mask_tis": {"cap": 2, "alpha": 0.5, "beta": 2},
    "steer": {"least": 0.02},
    "tis": {"cap": 2, "floor": 0.5},
    "tis_normalized": {"cap": 2},
}


def test_constants_that_no_case_reaches():
    for name, constants in SELDOM.items():
        assert load_objective(name).constants | constants == load_objective(name).constants, name


TO_THE_LETTER = {"l": "sum_i(logp)", "o": "sum_i(logp_old + A/(eta*T))", "average": "sums"}  # Eq. 1-3 of TPO
SUMS = {"A": "R - mean_g(R)", "average": "sums"}  # Tinker's
OTHER: list[Case] = [
    ("drpo", {"delta": 0.05}, mean("budget", literal.drpo, delta=0.05)),  # turns tokens back
    ("gvpo", {"beta": 2}, other.in_groups(other.gvpo, beta=2)),
    ("target_po", {"eta": 0.3}, other.in_groups(other.target_po, eta=0.3)),
    ("target_po", TO_THE_LETTER, other.in_groups(other.target_po, sums=True)),
    ("kpop", {"phi": 0.002}, weighted("responses", 0.2, other.kpop, phi=0.002)),
    (
        "maspo",
        {"sigma": 0.2, "alpha": 0.5, "beta_high": 0.5, "beta_low": 2},
        mean("tokens", other.maspo, sigma=0.2, alpha=0.5, beta=(0.5, 2)),
    ),
    ("dgpo", {"n": 2, "m": 3}, mean("tokens", other.dgpo, n=2, m=3)),
    ("cppo", {"delta": 0.02, "floor": 0.3, "budget": 0.005}, partial(other.cppo, delta=0.02, floor=0.3, budget=0.005)),
    ("cppo", {"delta": 0.05, "budget": 0.001}, partial(other.cppo, delta=0.05, budget=0.001)),
    *(("m2po", {"tau": tau}, partial(other.m2po, tau=tau)) for tau in (0, 1e-4, 0.01, 9)),
    ("m2po", {"X": "tail_b(d**2, T > 0, tau)"}, partial(other.m2po, every_token=True)),
    ("distillation", {"alpha": 1, "beta": 0.5}, mean("tokens", other.distillation, alpha=1, beta=0.5)),
    *(("pass_at_k", {"k": k}, clipped("tokens", 0.2, 0.28, partial(literal.pass_at_k, k=k))) for k in (1, 3, 4)),
    ("reinforce_pp_no_group", {"beta": 1, "eps": 0.1}, mean("responses", other.reinforce_pp_no_group, beta=1, eps=0.1)),
    ("bypass_pg_is", {"cap": 1}, mean("tokens", other.bypass_pg_is, cap=1)),
    (
        "mhpo",
        {"c": 0.3, "k_plus": 0.7, "k_minus": 3, "lambda_plus": 2, "lambda_minus": 0.5},
        mean("responses", literal.mhpo, c=0.3, k=(0.7, 3), scale=(2, 0.5)),
    ),
    ("clip_cov", {"share": 1}, partial(other.clip_cov, fraction=1.0)),
    ("kl_cov", {"share": 0.25}, partial(other.kl_cov, fraction=0.25)),
    ("steer", THEOREM, partial(other.steer, theorem=True)),
    ("steer", LINEAR, partial(other.steer, linear=True)),
    ("steer", THEOREM | LINEAR, partial(other.steer, theorem=True, linear=True)),
    ("bypass_ppo", SUMS | {"high": 0.2}, other.TINKER["ppo"]),
    ("cispo", SUMS | {"w": "exp(logp - logp_sampler)", "high": 3}, other.TINKER["cispo"]),
]


@pytest.mark.parametrize(("name", "changes", "expected"), OTHER)
def test_other_constants(name, changes, expected):
    for seed in range(3):
        compare(load_objective(name, changes), expected, make_case(seed))


@pytest.mark.parametrize("salt", [0, 5, -(2**63)])
def test_clip_cov_draws_many(salt):
    objective, case = load_objective("clip_cov", {"share": 0.2, "alpha": 0.1}), make_case(3, repeat=2)
    compare(objective, partial(other.clip_cov, fraction=0.2, low=0.1, salt=salt), case, salt)
    drawn = objective.prepare(case.batch(objective), salt=salt).values[objective.planned[-1].number]
    assert drawn.sum() == int(0.2 * 48)


MASKS: list[Case] = [
    ("trm_current", {"delta": 0.2}, literal.trust_region(lambda gaps: max(g * g / 2 for g in gaps) <= 0.2)),
    (
        "trm_current",
        {"v": "mean_i(k3(-(logp - logp_sampler))) <= 0.1"},
        literal.trust_region(lambda gaps: statistics.fmean(math.exp(g) - 1 - g for g in gaps) <= 0.1),
    ),
    ("glm_5", {"low": 0.1, "high": 0.15}, mean("tokens", other.glm_5, low=0.1, high=0.15)),
    *(
        (name, constants, weighted("tokens", 0.28, getattr(other, name), **constants))
        for name, constants in (
            ("seq_mis", {"cap": 1.02}),
            ("mis", {"cap": 1.05, "alpha": 0.9, "beta": 1.1, "veto": 0.8}),
            ("mis", {"cap": 1.05, "alpha": 0.9, "beta": 1.1}),
            ("chained_rejection", {"cap": 1.05, "alpha": 0.9, "beta": 1.1, "delta": 0.02}),
            ("outlier_mask", {"alpha": 0.85, "beta": 1.1}),
        )
    ),
    ("opsm", {"delta": 0.02}, mean("responses", literal.opsm, threshold=0.02)),
    ("top_entropy", {"share": 0.5}, partial(literal.top_entropy, fraction=0.5)),
    ("top_entropy_v2", {"share": 0.5}, partial(literal.top_entropy, fraction=0.5, over_kept=True)),
]


@pytest.mark.parametrize(("name", "changes", "expected"), MASKS)
def test_masks_that_act(name, changes, expected):
    """Bounds between the values of the case: some tokens or responses stay, some leave."""
    tokens = compare(load_objective(name, changes), expected, make_case(3, repeat=2))
    factor = tokens["correction"] if "correction" in tokens else tokens["weight"]
    assert 0 < (factor == 0).sum() < len(factor)
