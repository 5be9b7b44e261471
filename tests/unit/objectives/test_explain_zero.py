"""What `tepo explain` prints as a coefficient, and as the places where it is 0, is what autograd gives.

Every ratio with every surrogate, advantages that vary or turn inside a response, weights that drop tokens."""

import itertools
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from tepo.objectives import TokenBatch, load_objective
from tepo.objectives.axes import surrogate
from tepo.objectives.explain import explain
from tepo.objectives.testing.case import make_case

LEVELS = [
    {"level": "token"},
    {"level": "sequence"},
    {"level": "sequence", "mean": "arithmetic"},
    {"level": "sequence", "gradient": "local"},
    {"level": "sequence", "gradient": "line_21"},
    {"level": "sequence", "mean": "product"},
    {"level": "prefix"},
    {"level": "prefix", "gradient": "full"},
]
ALONE = {"geometric_clip", "divergence_mask", "log_prob"}  # these go with one ratio
OTHERS = set(surrogate.KINDS) - {"ppo_clip", "paper_clip", "sapo", "hard_clip", *ALONE}
SURROGATES = [
    {"kind": "ppo_clip", "low": 0.1, "high": 0.15},
    {"kind": "ppo_clip", "low": 0.1, "high": 0.15, "dual": 1.05},
    {"kind": "paper_clip", "high": 0.15},
    {"kind": "hard_clip", "low": 0.2, "high": 0.25},
    {"kind": "sapo", "tau_negative": 2.0},
    *({"kind": kind} for kind in sorted(OTHERS)),
]
WEIGHTS = ["uniform", "steer", {"kind": "clip_cov", "fraction": 0.15, "low": -50.0, "high": 50.0}]
MASKED = {"correction": {"kind": "masked", "low": 0.97, "high": 1.03}}
MASKS = [
    MASKED,
    MASKED | {"weight": "steer"},
    {"weight": {"kind": "off_policy_mask", "threshold": 0.02}},
    {"weight": {"kind": "top_entropy", "fraction": 0.5}},
]
ADVANTAGES = ["group_normalized", "entropy_term", "gtpo"]
DIVERGENCES = [
    {"kind": "divergence_mask", "low": 0.03, "high": 0.04},
    {"kind": "divergence_mask", "sides": "both", "low": 0.03, "high": 0.04},
    {"kind": "divergence_mask", "divergence": "kl", "low": 0.01, "high": 0.02},
]
CASES = [
    *itertools.product(LEVELS, SURROGATES),
    *(({"level": "token"}, part) for part in DIVERGENCES),
    ({"level": "sequence"}, {"kind": "geometric_clip"}),
]


def each_row(values: Tensor, rows: Tensor, reduce: Any) -> Tensor:
    """reduce: the values of one response to as many."""
    found = torch.empty_like(values)
    for row in rows.unique().tolist():
        found[rows == row] = reduce(values[rows == row])
    return found


def tail_sum(values: Tensor) -> Tensor:
    return values.flip(0).cumsum(0).flip(0)


def number(code: str, values: dict[str, Any]) -> Tensor:
    """A printed expression as numbers: side by side means times."""
    code = re.sub(r"sum_\(u>=t\) (.*)", r"tail(\1)", code)
    return eval(re.sub(r"(?<=[\w)]) +(?=[\w(])", " * ", code), {"__builtins__": {}}, values)


def printed_coefficient(text: str, values: dict[str, Any]) -> Tensor:
    code, _, definition = text.partition(", ")
    if "clip(" in code:
        code, definition = text, ""
    name, _, meaning = definition.partition(" = ")
    if name.startswith("g"):
        values = values | {name: number(meaning, values)}
    return number(code, values)


def printed_zero(text: str, values: dict[str, Any], rows: Tensor) -> Tensor:
    """Where the printed statement holds, bool [N]. Where it names A alone, A = 0 goes without saying."""
    first, _, second = text.partition("; or every token s")
    if second:
        return printed_zero(first, values, rows) | printed_zero("every token s" + second, values, rows)
    head, *rest = re.split(r"; | \((?=no clip|the whole|this token)", text)
    every = re.fullmatch(r"every token (s of the response|u >= t) has (.*)", head)
    parts = every[2].split(", or ") if every else [*head.split(", "), "A = 0"]
    parts += [f"{name} = 0" for name in ("lambda_t", "v_t") if any(f"{name} = 0" in part for part in rest)]
    code = " | ".join(f"(({part})".replace(" and ", ") & (").replace(" = ", " == ") + ")" for part in parts)
    held = eval(code, {"__builtins__": {}}, values)
    if not every:
        return held
    left = (~held).double()
    return each_row(left, rows, tail_sum if every[1] == "u >= t" else torch.sum) == 0


def numbers_of(batch: TokenBatch, out: Any, surrogate: dict[str, Any]) -> dict[str, Any]:
    """What the symbols stand for, [N] each; A is 0 where a clip stops the token's own term."""
    rows, tokens = batch.sequence, out.tokens
    d, a = tokens["log_ratio"], tokens["advantage"]
    ratio = tokens["ratio"]
    weight = tokens.get("weight", torch.ones_like(d))
    tau = torch.where(a > 0, 1.0, surrogate.get("tau_negative", 1.05))
    limited = torch.where(a > 0, d.clamp(max=0.4), d.clamp(min=-0.4))
    rho = each_row(limited, rows, torch.mean).exp()
    found: dict[str, Any] = {"r_t": d.exp(), "w_i": ratio, "p_t": ratio, "p_u": ratio, "d_t": d}
    found |= {"u": batch.positions + 1, "T_i": batch.lengths[rows], "rho_i": rho}
    for mark in ("", "_s", "_u"):
        found |= {f"A{mark}": a, f"tau{mark}": tau}
    found |= {f"lambda{mark}": weight for mark in ("_t", "_s", "_u")}
    found |= {f"v{mark}": tokens.get("correction", torch.ones_like(d)) for mark in ("_t", "_s", "_u")}
    found |= {"phi": torch.where(a >= 0, ratio**2 * torch.exp(3 - 3 * ratio), ratio**3 * torch.exp(2 - 2 * ratio))}
    old, new = batch.old_logprobs.exp(), batch.logprobs.detach().exp()
    found |= {"dp": new - old, "kl": old * torch.log(old / new) + (1 - old) * torch.log((1 - old) / (1 - new))}
    functions = {"sigmoid": torch.sigmoid, "clip": torch.clamp, "exp": torch.exp}
    functions |= {"mean_s": lambda x: each_row(x, rows, torch.mean), "tail": lambda x: each_row(x, rows, tail_sum)}
    return found | functions


EVERY_CASE = pytest.mark.parametrize(("ratio", "surrogate"), CASES, ids=lambda part: "-".join(map(str, part.values())))


@EVERY_CASE
def test_coefficient_and_zeros(ratio, surrogate):
    for advantage, weight in itertools.product(ADVANTAGES, WEIGHTS):
        check({"ratio": ratio, "surrogate": surrogate, "advantage": advantage, "weight": weight})


@EVERY_CASE
def test_other_masks(ratio, surrogate):
    for mask in MASKS:
        check({"ratio": ratio, "surrogate": surrogate, "advantage": "group_normalized"} | mask)


def check(source: dict[str, Any]) -> None:
    """Compare what is printed of one composition with autograd."""
    surrogate = source["surrogate"]
    objective = load_objective(source | {"aggregation": "token_mean"})
    batch = make_case(5, repeat=3, drift=0.4).batch(objective)
    plan = objective.prepare(batch, salt=3)
    out = objective.loss(batch, plan)
    assert batch.logprobs is not None
    found = -torch.autograd.grad(out.loss, batch.logprobs)[0] / plan.scale
    told, values = explain(objective).coefficient, numbers_of(batch, out, surrogate)

    zero = printed_zero(told.zero, values, batch.sequence)
    assert zero.any(), source
    assert not zero.all(), source
    assert ((found.abs() < 1e-12) == zero).all(), (told.zero, source)

    none = torch.zeros_like(zero)
    stopped = out.tokens.get("clipped", none) | out.tokens.get("clipped_lower", none)
    alone = torch.tensor(surrogate["kind"] == "geometric_clip")  # its clip takes out the token's own log-ratio
    if surrogate["kind"] not in ("cispo", "geometric_clip"):  # these take the token's own term out, the others' stay
        values |= {name: values[name].masked_fill(stopped, 0.0) for name in ("A", "A_s", "A_u")}
    expected = printed_coefficient(told.text, values).masked_fill(stopped & alone, 0.0)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11, msg=lambda text: f"{source}: {text}")
