"""Methods that change the advantage or the form of the surrogate, to the letter and in loops, as in literal.py."""

import math
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from tests.unit.objectives.literal import (
    Row,
    View,
    centred,
    dppo,
    gap,
    group_advantage,
    log_ratio,
    mean,
    ratio,
    tv_away,
    weighted,
)


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


def in_groups(of_group: Callable[[View, list[int]], Tensor]) -> Row:
    """The mean over groups of what is maximised of each, by its responses that are not empty."""

    def row(v: View) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for members in v.groups.values():
            total = total + len([i for i in members if v.T[i]]) * of_group(v, [i for i in members if v.T[i]])
        return total / v.B  # all groups of one size: 1 over their number

    return row


def gvpo(beta: float = 0.1) -> Row:
    def of_group(v: View, members: list[int]) -> Tensor:
        implicit = {i: beta * sum(log_ratio(v, i, t) for t in range(v.T[i])) for i in members}
        middle = sum(implicit.values()).item() / len(members)
        squares = [(implicit[i] - middle - centred(v, i)) ** 2 / 2 for i in members]
        return -sum(squares) / max(len(members) - 1, 1)

    return in_groups(of_group)


def target_po(eta: float = 1.0, *, sums: bool = False) -> Row:
    """Eq. 1 to 3 by the softmax over the group, with the value of the row, which writes their gradient."""

    def of_group(v: View, members: list[int]) -> Tensor:
        def size(i: int) -> int:
            return 1 if sums else v.T[i]

        every = v.peers(members[0])
        spread = statistics.pstdev(v.rewards[k] for k in every)
        u = [centred(v, i) / spread if spread else 0.0 for i in members]
        old = torch.tensor([sum(v.lo[i]) / size(i) for i in members], dtype=torch.float64)
        q = torch.softmax(torch.log_softmax(old, 0) + torch.tensor(u, dtype=torch.float64) / eta, 0)
        now = torch.stack([sum(v.lp[i]) / size(i) for i in members])
        fit = (q * torch.log_softmax(now, 0)).sum()
        linear = ((q - torch.softmax(now, 0)) * now).sum()  # what the row has for a value
        return fit - fit.detach() + linear.detach()

    return in_groups(of_group)


ADVANTAGES: dict[str, Row] = {
    "gvpo": gvpo(),
    "target_po": target_po(),
    "maspo": maspo(),
    "kpop": kpop(),
    "length_penalty": dppo(tv_away, shortened, 0.001),
}
