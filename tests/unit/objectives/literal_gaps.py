"""Literal formulas of what trainers ship: corrections of the sampler-trainer gap, their masks, and losses."""

import math
import statistics

import torch
from torch import Tensor

from tests.unit.objectives.literal import (
    Row,
    View,
    centred,
    clip,
    clipped,
    gap,
    group_advantage,
    log_ratio,
    mean,
    ppo,
    ratio,
    weighted,
)


def to_sampler(v: View, i: int, t: int) -> Tensor:
    return torch.exp(v.lp[i][t] - v.ls[i][t])


def topr(v: View, i: int, t: int) -> Tensor:
    """Eq. 8 with rewards of 1 and -1: [pi/mu] from 0 to 1 of the whole response on the negative ones."""
    if v.rewards[i] > 0:
        return v.lp[i][t]
    product = math.prod(math.exp(log_ratio(v, i, s).item()) for s in range(v.T[i]))
    return -(1.0 if product > 1 else product) * v.lp[i][t]


def glm_5(low: float = 0.2, high: float = 0.28) -> Row:
    """Eq. 3 to 5."""

    def term(v: View, i: int, t: int) -> Tensor:
        r = to_sampler(v, i, t).item()
        f = r if 1 - low < r < 1 + high else 0.0
        return f * centred(v, i) * v.lp[i][t]

    return mean("tokens", term)


def product_of_gaps(v: View, i: int) -> float:
    return math.prod(math.exp(gap(v, i, s)) for s in range(v.T[i]))


def seq_mis(cap: float = 3.0) -> Row:
    def weight(v: View, i: int, t: int) -> float:
        whole = product_of_gaps(v, i)
        return 0.0 if whole > cap else whole

    return weighted("tokens", 0.28, weight)


def mis(cap: float = 2.0, alpha: float = 0.5, beta: float = 2.0, veto: float = 1e-4) -> Row:
    def weight(v: View, i: int, t: int) -> float:
        average = statistics.fmean(min(math.exp(gap(v, k, s)), cap) for k, s in v.tokens())
        vetoed = any(math.exp(gap(v, i, s)) < veto for s in range(v.T[i]))
        r = math.exp(gap(v, i, t))
        return 0.0 if vetoed or r < alpha or r > beta else min(r, cap) / average

    return weighted("tokens", 0.28, weight)


def bypass_pg_is(cap: float = 2.0) -> Row:
    def term(v: View, i: int, t: int) -> Tensor:
        whole = math.prod(to_sampler(v, i, s).item() for s in range(v.T[i]))
        return min(whole, cap) * group_advantage(v, i) * v.lp[i][t]

    return mean("tokens", term)


def chained_rejection(cap: float = 2.0, alpha: float = 0.6, beta: float = 1.6, delta: float = 2.5) -> Row:
    def weight(v: View, i: int, t: int) -> float:
        inverse = math.exp(-gap(v, i, t))
        far = max(gap(v, i, s) ** 2 / 2 for s in range(v.T[i])) > delta
        return 0.0 if far or inverse < alpha or inverse > beta else min(1 / inverse, cap)

    return weighted("tokens", 0.28, weight)


def outlier_mask(alpha: float = 1e-4, beta: float = 100.0) -> Row:
    return weighted(
        "tokens", 0.28, lambda v, i, t: float(all(alpha <= math.exp(gap(v, i, s)) <= beta for s in range(v.T[i])))
    )


def reinforce_pp_no_group(beta: float = 0.001, eps: float = 1e-8) -> Row:
    """Eq. 4, 5 and 1."""

    def penalised(v: View, i: int, t: int) -> float:
        return v.rewards[i] - beta * sum(v.lo[i][s] - v.l0[i][s] for s in range(t, v.T[i]))

    def term(v: View, i: int, t: int) -> Tensor:
        every = [penalised(v, k, s) for k, s in v.tokens()]
        a = (penalised(v, i, t) - statistics.fmean(every)) / math.sqrt(statistics.variance(every) + eps)
        return ppo(ratio(v, i, t), a, 0.2, 0.2)

    return mean("responses", term)


GAPS: dict[str, Row] = {
    "importance_sampling": mean("sums", lambda v, i, t: to_sampler(v, i, t) * centred(v, i)),
    "topr": mean("responses", topr),
    "glm_5": glm_5(),
    "seq_mis": seq_mis(),
    "mis": mis(),
    "bypass_ppo": clipped("tokens", 0.2, 0.28, w=to_sampler),
    "bypass_pg_is": bypass_pg_is(),
    "chained_rejection": chained_rejection(),
    "outlier_mask": outlier_mask(),
    "reinforce_pp_no_group": reinforce_pp_no_group(),
}

TINKER: dict[str, Row] = {  # its other losses, with the thresholds that it has by default
    "ppo": mean("sums", lambda v, i, t: ppo(to_sampler(v, i, t), centred(v, i), 0.2, 0.2)),
    "cispo": mean(
        "sums", lambda v, i, t: clip(to_sampler(v, i, t).detach(), 0.0, 4.0).item() * centred(v, i) * v.lp[i][t]
    ),
}
