"""Formulas that nobody wrote: each against what numpy makes of its text, and against what must not change it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tepo.objectives import Objective, TokenBatch
from tepo.objectives.testing.case import LIMIT, TabularCase, make_case

Array = np.ndarray[Any, Any]
A = "(R - mean_g(R)) / (std_g(R) + 1e-6)"


# texts ----------------------------------------------------------------------------------------------------------------
NUMBERS = st.sampled_from(("0", "0.5", "1", "2", "5", "L", "N", "B", "sqrt(L)", "log(L)", "max(L, 3)", "clip(L, 1, 3)"))
RESPONSES = st.sampled_from(("T", "finished", "mean_i(d)", "sum_i(H)", "A"))
TOKENS = st.sampled_from(("w", "d", "H", "logp", "logp_old", "t", "w*A", "clip(w, 0.8, 1.2)*A", "sg(w)", "tokens(2)"))
CONDITIONS = st.sampled_from(("(A > 0)", "(d > 0)", "(t > 2)", "(T > 3)", "(L > 5)", "(L > 6)", "(finished > 0)"))


def _of(*templates: str, **parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """A template with its places filled."""
    return st.builds(lambda text, **filled: text.format(**filled), st.sampled_from(templates), **parts)


_ANY = ("min({x}, {y})", "max({x}, {y})", "min({y}, {x}, 1)", "max({x}, {y}, {z})", "clip({x}, 0.5, 2)")
_ANY += ("clip({x}, min({y}, {z}), max({y}, {z}))", "({x} + {y})", "({x} - {y})", "{x}*{y}", "{x}/(1 + abs({y}))")
_ANY += ("exp({x})", "sqrt(1 + abs({x}))", "abs({x})", "sigmoid({x})", "k2({x})", "k3({x})", "sg({x})", "-{x}")
_ANY += ("where({c}, {x}, {y})", "{c}*{x}", "{x}*(~{c} | (A > 0))", "expm1({x})")
WITHIN_RESPONSE = ("mean_i({x})", "sum_i({x})", "max_i({x})")
OVER_BATCH = ("mean_b(tokens({x}))", "mean_b(responses({x}))", "std_b(responses({x}))", "max_b(tokens({x}))")


def _grown(token: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    response = RESPONSES | _of(*WITHIN_RESPONSE, x=token.map(lambda text: f"({text} + 0*d)"))
    of_group = _of("sum_gb({x})", "max_gb({x})", "1/sum_gb(1 + abs({x}))", *OVER_BATCH, x=response)
    every = token | response | NUMBERS | of_group
    return _of(*_ANY, x=every, y=every, z=every, c=CONDITIONS) | _of("prefix_mean_i({x} + 0*d)", x=every)


EXPRESSIONS = st.recursive(TOKENS, _grown, max_leaves=6)


# numpy ----------------------------------------------------------------------------------------------------------------
def _exp(x: Array) -> Array:
    return np.exp(np.minimum(x, 20.0))


def _k3(x: Array) -> Array:
    return np.expm1(-np.maximum(x, -20.0)) + np.maximum(x, -20.0)


def _spread(x: Array) -> float:
    return x.std(ddof=1) if len(x) > 1 else 0.0


def values(J: str, lines: Mapping[str, str], batch: TokenBatch, keep: bool) -> Array:
    """What a text is at each token in the loss, every aggregate written out over the tokens that it is of."""
    named = {"logp": batch.logprobs, "logp_old": batch.old_logprobs, "H": batch.entropies, "A": batch.advantages}
    given = {name: value.detach().numpy() for name, value in named.items()}
    lengths, finished = batch.lengths.numpy(), batch.finished.numpy()
    owner, t = np.repeat(np.arange(len(lengths)), lengths), np.concatenate([np.arange(size) + 1 for size in lengths])
    group, kept, every = batch.group_ids.numpy()[owner], finished[owner] | (not keep), np.ones((len(t), 1), bool)
    own = owner[:, None] == owner

    def over(function: Callable[[Array], float], seen: Array) -> Callable[[Array], Array]:
        """seen: of which tokens [N] each token [N] takes the value."""
        return lambda x: np.array([function(np.broadcast_to(x, len(t))[row]) if row.any() else 0.0 for row in seen])

    counts = {"t": t, "T": lengths[owner], "finished": finished[owner], "L": LIMIT}
    counts |= {"N": kept.sum(), "B": (kept & (t == 1)).sum()}
    plain = {"exp": _exp, "expm1": lambda x: np.expm1(np.minimum(x, 20.0)), "log": np.log, "sqrt": np.sqrt, "k3": _k3}
    plain |= {"abs": np.abs, "sigmoid": scipy.special.expit, "k2": lambda x: x**2 / 2, "sg": lambda x: x}
    plain |= {"min": lambda *x: reduce(np.minimum, x), "max": lambda *x: reduce(np.maximum, x), "tokens": lambda x: x}
    plain |= {"clip": lambda x, low, high: np.minimum(np.maximum(x, low), high), "where": np.where}
    of_response = {"mean_i": np.mean, "sum_i": np.sum, "max_i": np.max}
    of_group = {"sum_gb": np.sum, "max_gb": np.max}
    of_batch = {"mean_b": np.mean, "std_b": _spread, "max_b": np.max}
    scope = given | counts | plain | {"d": given["logp"] - given["logp_old"]}
    scope |= {name: over(function, own) for name, function in of_response.items()}
    scope |= {"prefix_mean_i": over(np.mean, own & (t <= t[:, None]))}
    scope |= {name: over(one, kept & (t == 1) & (group[:, None] == group)) for name, one in of_group.items()}
    scope |= {name: over(one, kept & every) for name, one in of_batch.items()}
    scope |= {f"{name}_responses": over(one, kept & every & (t == 1)) for name, one in of_batch.items()}
    for name, text in {**lines, "J": J}.items():
        scope[name] = eval(text.replace("_b(responses(", "_b_responses(("), scope)
    return np.broadcast_to(scope["J"], len(t))[kept]


def gradient(made: Objective, case: TabularCase, batch: TokenBatch) -> tuple[float, Tensor]:
    """The loss, and its slope by the logits [N, V]."""
    out = made.loss(batch, made.prepare(batch, salt=1)).loss
    return float(out.detach()), torch.autograd.grad(out, case.logits, retain_graph=True)[0]


def close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= 1e-9 * (1e-3 + other.abs().max()))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    text=EXPRESSIONS,
    constant=st.sampled_from(("", " + 3", " - L")),
    keep=st.booleans(),
    drift=st.sampled_from((0.0, 0.5)),
)
def test_a_formula_is_what_numpy_makes_of_its_text(text: str, constant: str, keep: bool, drift: float):
    """Its value; its gradient in one micro-batch or in one for each response, and without what was cut."""
    lines, J = {"w": "exp(d)", "x": text}, f"w*A + 0.1*x{constant}"
    made = Objective("mine", {"A": A, **lines, "J": J}, {}, keep="finished" * keep)
    case = make_case(0, drift=drift)
    case = replace(case, finished=case.finished & (torch.arange(9) < 6))  # a whole group is cut
    batch = case.batch(made)
    loss, slope = gradient(made, case, batch)

    expected = values(J, lines, batch, keep)
    assert loss == pytest.approx(-expected.mean(), rel=1e-9, abs=1e-9 * (1 + np.abs(expected).mean()))
    assert slope.isfinite().all() or not math.isfinite(loss)

    plan = made.prepare(batch, salt=1)
    parts = [made.loss(batch.select([i]), plan.select([i])).loss for i in range(9)]
    assert close(torch.autograd.grad(sum(parts), case.logits, retain_graph=True)[0], slope)

    if keep:
        left = replace(made, keep="")
        assert close(gradient(left, case, batch.select(case.finished))[1], slope)
