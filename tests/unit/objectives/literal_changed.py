"""Literal formulas of rows that change the ratio, the advantage or the form of the surrogate, of rows that read what a
run keeps or loads beside its policy, and of what trainers ship: corrections of the sampler-trainer gap and losses; see
literal.py."""

import math
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from tests.unit.objectives.literal import (
    ZERO,
    Row,
    View,
    centred,
    clip,
    clipped,
    dppo,
    gap,
    group_advantage,
    log_ratio,
    mean,
    ppo,
    ratio,
    tv_away,
    weighted,
)


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


def distillation(alpha: float, beta: float) -> Row:
    """Tinker's importance sampling of -KL(policy || teacher), estimated at each sampled token by the policy that
    sampled, with `alpha` of the centred reward."""

    def row(v: View) -> Tensor:
        teacher = v.case.chosen(v.case.teacher_logits).tolist()

        def advantage(i: int, t: int) -> float:
            reverse_kl = v.lo[i][t] - teacher[v.case.offsets[i] + t]
            return alpha * centred(v, i) - beta * reverse_kl

        return mean("tokens", lambda v, i, t: ratio(v, i, t) * advantage(i, t))(v)

    return row


def tracked(v: View, i: int) -> float:
    """The reward over the prompt's value, whitened over the responses of the batch."""
    values = v.case.groups().values.tolist()
    every = [reward - value for reward, value in zip(v.rewards, values, strict=True)]
    return (every[i] - statistics.fmean(every)) / (statistics.stdev(every) + 1e-8)


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


CHANGED: dict[str, Row] = {
    "m2po": m2po(),
    "dgpo": dgpo(),
    "cppo": cppo(),
    "gvpo": gvpo(),
    "target_po": target_po(),
    "maspo": maspo(),
    "kpop": kpop(),
    "length_penalty": dppo(tv_away, shortened, 0.001),
    "distillation": distillation(0, 1),
    "spo": clipped("tokens", 0.2, 0.28, tracked),
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
