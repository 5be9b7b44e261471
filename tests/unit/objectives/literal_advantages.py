"""Methods that change the advantage or the form of the surrogate, to the letter and in loops, as in literal.py."""

import math
import statistics

from torch import Tensor

from tests.unit.objectives.literal import (
    EPS,
    Row,
    View,
    clipped,
    dppo,
    gap,
    group_advantage,
    mean,
    ratio,
    tv_away,
    weighted,
)


def dvao(v: View, i: int) -> float:
    """The case has one reward, of weight 1: a weight of 1 times its advantage."""
    rewards = [v.rewards[k] for k in v.peers(i)]
    sigma = statistics.stdev(rewards)
    return sigma / (sigma + EPS) * (v.rewards[i] - statistics.fmean(rewards)) / sigma if sigma else 0.0


def maspo(sigma: float = 1.0, alpha: float = 0.3, beta: tuple[float, float] = (0.03, 0.03)) -> Row:
    """beta: of positive advantages, and of negative ones."""

    def term(v: View, i: int, t: int) -> Tensor:
        a, rho = group_advantage(v, i), ratio(v, i, t)
        mass = min(max(sigma / math.exp(v.lo[i][t]) ** alpha, sigma), 10.0)
        gate = 1.0
        if a > 0 and rho > 1:
            width = mass * min(max(1 + beta[0] * a, 0.1), 10.0)
            gate = math.exp(-((rho.item() - 1) ** 2) / (2 * width**2))
        if a < 0 and rho < 1:
            width = mass * min(max(1 / (1 - beta[1] * a), 0.1), 10.0)
            gate = math.exp(-((rho.item() - 1) ** 2) / (2 * width**2))
        return gate * rho * a

    return mean("tokens", term)


def binary_kl(p: float, q: float) -> float:
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def kpop(phi: float = 2.0) -> Row:
    def kept(v: View, i: int, t: int) -> float:
        p, q = math.exp(v.lo[i][t]), math.exp(v.ls[i][t])
        return math.exp(gap(v, i, t)) if binary_kl(p, q) <= phi and binary_kl(q, p) <= phi else 0.0

    return weighted("responses", 0.2, kept)


def shortened(v: View, i: int) -> float:
    members = v.peers(i)
    pass_rate, longest = statistics.fmean(v.rewards[k] for k in members), max(1, *(v.T[k] for k in members))
    shaped = {k: v.rewards[k] - 0.25 * pass_rate * v.T[k] / longest for k in members}
    return shaped[i] - statistics.fmean(shaped.values())


ADVANTAGES: dict[str, Row] = {
    "dvao": clipped("tokens", 0.2, 0.28, dvao),
    "maspo": maspo(),
    "kpop": kpop(),
    "length_penalty": dppo(tv_away, shortened, 0.001),
}
