"""Literal formulas of rows that change the ratio, the clip or the trust region; see literal.py."""

import math
import statistics

from torch import Tensor

from tests.unit.objectives.literal import ZERO, Row, View, group_advantage, log_ratio, mean, ratio


def m2po(tau: float = 0.04, *, every_token: bool = False) -> Row:
    """every_token: whether all may leave, and not only those that move the way their advantage points."""

    def j(v: View) -> Tensor:
        squares = {}
        for i, t in v.tokens():
            a, r = group_advantage(v, i), ratio(v, i, t).item()
            if every_token or (a > 0 and r > 1) or (a < 0 and r < 1):
                squares[i, t] = log_ratio(v, i, t).item() ** 2
        masked = set()
        while squares and statistics.fmean(squares.values()) > tau:
            worst = max(squares, key=lambda key: squares[key])
            masked.add(worst)
            del squares[worst]
        gain = mean("tokens", lambda v, i, t: ZERO if (i, t) in masked else ratio(v, i, t) * group_advantage(v, i))
        return gain(v)

    return j


def dgpo(n: int = 1, m: int = 2) -> Row:
    """The weights of the gradient of pi: C_left pi^n, C_right pi^(-1/m), 1/pi_old."""

    def term(v: View, i: int, t: int) -> Tensor:
        a, pi = group_advantage(v, i), v.lp[i][t].exp()
        old, now = pi.detach().item() / ratio(v, i, t).item(), pi.item()
        left, right = 0.8 * old, 1.2 * old
        if a < 0 and now < left:
            weight = now**n / left**n / old
        elif a > 0 and now > right:
            weight = (right / now) ** (1 / m) / old
        else:
            weight = 1 / old
        return weight * a * pi

    return mean("tokens", term)


def cppo(delta: float = 0.15, floor: float = 0.8, budget: float = 0.015) -> Row:
    """Algorithm 1, with the change of the sampled token's probability as D."""

    def j(v: View) -> Tensor:
        kept = set()
        for i, length in enumerate(v.T):
            spent = weights = 0.0
            for t in range(length):
                weight = 1 - (1 - floor) / (length - 1) * t if length > 1 else 1.0
                z = weight * abs(math.exp(v.lp[i][t].item()) - math.exp(v.lo[i][t]))
                if group_advantage(v, i) * (ratio(v, i, t).item() - 1) <= 0 or z <= min(
                    delta, delta + budget * weights - spent
                ):
                    kept.add((i, t))
                spent, weights = spent + z, weights + weight
        gain = mean("tokens", lambda v, i, t: ratio(v, i, t) * group_advantage(v, i) if (i, t) in kept else ZERO)
        return gain(v)

    return j


RATIOS: dict[str, Row] = {"m2po": m2po(), "dgpo": dgpo(), "cppo": cppo()}
