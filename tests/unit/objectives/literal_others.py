"""Literal formulas of rows that change the ratio, the advantage or the form of the surrogate, select tokens, shape
rewards by entropy or read what a run keeps beside its policy, and of what trainers ship; see literal.py."""

import math
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from tepo.common.randomness import mix, uniform
from tests.unit.objectives.literal import (
    EPS,
    ZERO,
    Pair,
    Row,
    View,
    binary_kl,
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


def m2po(v: View, tau: float = 0.04, *, every_token: bool = False) -> Tensor:
    """every_token: whether all may leave, and not only those that move the way their advantage points."""
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
    return mean("tokens", lambda v, i, t: ZERO if (i, t) in masked else ratio(v, i, t) * group_advantage(v, i))(v)


def dgpo(v: View, i: int, t: int, n: int = 1, m: int = 2) -> Tensor:
    """The weights of the gradient of pi: C_left pi^n, C_right pi^(-1/m), 1/pi_old."""
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


def cppo(v: View, delta: float = 0.15, floor: float = 0.8, budget: float = 0.015) -> Tensor:
    """Algorithm 1, with the change of the sampled token's probability as D."""
    kept = set()
    for i, length in enumerate(v.T):
        spent = weights = 0.0
        for t in range(length):
            weight = 1 - (1 - floor) / (length - 1) * t if length > 1 else 1.0
            z = weight * abs(math.exp(v.lp[i][t].item()) - math.exp(v.lo[i][t]))
            back = group_advantage(v, i) * (ratio(v, i, t).item() - 1) <= 0
            if back or z <= min(delta, delta + budget * weights - spent):
                kept.add((i, t))
            spent, weights = spent + z, weights + weight
    return mean("tokens", lambda v, i, t: ratio(v, i, t) * group_advantage(v, i) if (i, t) in kept else ZERO)(v)


def maspo(v: View, i: int, t: int, sigma: float = 1.0, alpha: float = 0.3, beta: Pair = (0.03, 0.03)) -> Tensor:
    """beta: of positive advantages, and of negative ones."""
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


def kpop(v: View, i: int, t: int, phi: float = 2.0) -> float:
    p, q = math.exp(v.lo[i][t]), math.exp(v.ls[i][t])
    return math.exp(gap(v, i, t)) if binary_kl(p, q) <= phi and binary_kl(q, p) <= phi else 0.0


def shortened(v: View, i: int) -> float:
    members = v.peers(i)
    pass_rate, longest = statistics.fmean(v.rewards[k] for k in members), max(1, *(v.T[k] for k in members))
    shaped = {k: v.rewards[k] - 0.25 * pass_rate * v.T[k] / longest for k in members}
    return shaped[i] - statistics.fmean(shaped.values())


def in_groups(of_group: Callable[..., Tensor], **constants: float | bool) -> Row:
    """The mean over groups of what is maximised of each, by its responses that are not empty."""

    def row(v: View) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for members in v.groups.values():
            filled = [i for i in members if v.T[i]]
            total = total + len(filled) * of_group(v, filled, **constants)
        return total / v.B  # all groups of one size: 1 over their number

    return row


def gvpo(v: View, members: list[int], beta: float = 0.1) -> Tensor:
    implicit = {i: beta * sum(log_ratio(v, i, t) for t in range(v.T[i])) for i in members}
    middle = sum(implicit.values()).item() / len(members)
    squares = [(implicit[i] - middle - centred(v, i)) ** 2 / 2 for i in members]
    return -sum(squares) / max(len(members) - 1, 1)


def target_po(v: View, members: list[int], eta: float = 1.0, *, sums: bool = False) -> Tensor:
    """Eq. 1 to 3 by the softmax over the group, with the value of the row, which writes their gradient."""
    size = {i: 1 if sums else v.T[i] for i in members}
    spread = statistics.pstdev(v.rewards[k] for k in v.peers(members[0]))
    u = [centred(v, i) / spread if spread else 0.0 for i in members]
    old = torch.tensor([sum(v.lo[i]) / size[i] for i in members], dtype=torch.float64)
    q = torch.softmax(torch.log_softmax(old, 0) + torch.tensor(u, dtype=torch.float64) / eta, 0)
    now = torch.stack([sum(v.lp[i]) / size[i] for i in members])
    fit = (q * torch.log_softmax(now, 0)).sum()
    linear = ((q - torch.softmax(now, 0)) * now).sum()  # what the row has for a value
    return fit - fit.detach() + linear.detach()


def distillation(v: View, i: int, t: int, alpha: float = 0.0, beta: float = 1.0) -> Tensor:
    """Tinker's importance sampling of -KL(policy || teacher), estimated at each sampled token by the policy that
    sampled, with `alpha` of the centred reward."""
    teacher = v.case.chosen(v.case.teacher_logits)[v.case.offsets[i] + t].item()
    return ratio(v, i, t) * (alpha * centred(v, i) - beta * (v.lo[i][t] - teacher))


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


def glm_5(v: View, i: int, t: int, low: float = 0.2, high: float = 0.28) -> Tensor:
    """Eq. 3 to 5."""
    r = to_sampler(v, i, t).item()
    f = r if 1 - low < r < 1 + high else 0.0
    return f * centred(v, i) * v.lp[i][t]


def seq_mis(v: View, i: int, t: int, cap: float = 3.0) -> float:
    whole = math.prod(math.exp(gap(v, i, s)) for s in range(v.T[i]))
    return 0.0 if whole > cap else whole


def mis(v: View, i: int, t: int, cap: float = 2.0, alpha: float = 0.5, beta: float = 2.0, veto: float = 1e-4) -> float:
    average = statistics.fmean(min(math.exp(gap(v, k, s)), cap) for k, s in v.tokens())
    vetoed = any(math.exp(gap(v, i, s)) < veto for s in range(v.T[i]))
    r = math.exp(gap(v, i, t))
    return 0.0 if vetoed or r < alpha or r > beta else min(r, cap) / average


def bypass_pg_is(v: View, i: int, t: int, cap: float = 2.0) -> Tensor:
    whole = math.prod(to_sampler(v, i, s).item() for s in range(v.T[i]))
    return min(whole, cap) * group_advantage(v, i) * v.lp[i][t]


def chained_rejection(
    v: View, i: int, t: int, cap: float = 2.0, alpha: float = 0.6, beta: float = 1.6, delta: float = 2.5
) -> float:
    inverse = math.exp(-gap(v, i, t))
    far = max(gap(v, i, s) ** 2 / 2 for s in range(v.T[i])) > delta
    return 0.0 if far or inverse < alpha or inverse > beta else min(1 / inverse, cap)


def outlier_mask(v: View, i: int, t: int, alpha: float = 1e-4, beta: float = 100.0) -> float:
    return float(all(alpha <= math.exp(gap(v, i, s)) <= beta for s in range(v.T[i])))


def reinforce_pp_no_group(v: View, i: int, t: int, beta: float = 0.001, eps: float = 1e-8) -> Tensor:
    """Eq. 4, 5 and 1."""

    def penalised(i: int, t: int) -> float:
        return v.rewards[i] - beta * sum(v.lo[i][s] - v.l0[i][s] for s in range(t, v.T[i]))

    every = [penalised(k, s) for k, s in v.tokens()]
    a = (penalised(i, t) - statistics.fmean(every)) / math.sqrt(statistics.variance(every) + eps)
    return ppo(ratio(v, i, t), a, 0.2, 0.2)


# tokens that are selected, rewards by entropy ------------------------------------------------------------------------
def covariances(v: View) -> dict[tuple[int, int], float]:
    """(log pi - mean)(A - mean), means over tokens."""
    logs = {key: v.lp[key[0]][key[1]].item() for key in v.tokens()}
    advantages = {key: group_advantage(v, key[0]) for key in v.tokens()}
    mean_log, mean_advantage = statistics.fmean(logs.values()), statistics.fmean(advantages.values())
    return {key: (logs[key] - mean_log) * (advantages[key] - mean_advantage) for key in logs}


def draw(v: View, salt: int, i: int, t: int) -> float:
    """The stateless number of a token, one at a time."""
    key = mix(v.case.uid[i : i + 1], torch.tensor(salt))
    return float(uniform(key, t))


def clip_cov(v: View, fraction: float = 2e-4, low: float = 1.0, high: float = 5.0, salt: int = 0) -> Tensor:
    found, candidates = covariances(v), []
    for i, t in v.tokens():
        r, a = ratio(v, i, t).item(), group_advantage(v, i)
        clipped = min(max(r, 0.0), 2.0) * a < r * a
        if low < found[i, t] < high and not clipped:
            candidates.append((draw(v, salt, i, t), i, t))
    dropped = {(i, t) for _, i, t in sorted(candidates)[: max(int(fraction * v.N), 1)]}

    def term(v: View, i: int, t: int) -> Tensor:
        return ZERO if (i, t) in dropped else ppo(ratio(v, i, t), group_advantage(v, i), 1.0, 1.0)

    return mean("tokens", term)(v)


def kl_cov(v: View, fraction: float = 2e-3, salt: int = 0) -> Tensor:
    found = covariances(v)
    order = sorted(v.tokens(), key=lambda key: (-found[key], draw(v, salt, *key)))
    top = set(order[: max(1, int(fraction * v.N))])

    def term(v: View, i: int, t: int) -> Tensor:
        gain = ratio(v, i, t) * group_advantage(v, i)
        return gain - torch.abs(log_ratio(v, i, t)) if (i, t) in top else gain

    return mean("tokens", term)(v)


def steer(v: View, *, theorem: bool = False, linear: bool = False, floor: float = 0.8, ceiling: float = 1.2) -> Tensor:
    """theorem: by the paper's size of the change, not the code's. linear: weights from floor to ceiling."""
    size = {}
    for i, t in v.tokens():
        x, a, r = math.exp(v.lp[i][t].item()), group_advantage(v, i), ratio(v, i, t).item()
        f = x * (1 - x) * (math.log(x) + v.h_old[i][t])
        if theorem:
            clipped = (a > 0 and r > 1.28) or (a < 0 and r < 0.8)
            size[i, t] = 0.0 if clipped else abs(r * a * f)
        else:
            size[i, t] = abs(a / math.exp(v.lo[i][t]) * f)
    top, bottom = max(size.values()), min(size.values())

    def weight(i: int, t: int) -> float:
        if linear:
            return ceiling + (floor - ceiling) * (size[i, t] - bottom) / (top - bottom)
        return min(max(math.exp(math.log(floor) / max(top, 0.02) * size[i, t]), floor), 1.0)

    return mean("tokens", lambda v, i, t: weight(i, t) * ppo(ratio(v, i, t), group_advantage(v, i), 0.2, 0.28))(v)


def normalised(values: dict, key) -> float:
    spread = statistics.stdev(values.values())
    return 0.0 if len(set(values.values())) == 1 else (values[key] - statistics.fmean(values.values())) / (spread + EPS)


def token_shares(v: View, members: list[int], h: Callable[[int, int], float]) -> dict[tuple[int, int], float]:
    """d_t h / sum h over the members that are still being generated at t; all alike where every h is 0."""
    found = {}
    for k in members:
        for t in range(v.T[k]):
            alive = [j for j in members if v.T[j] > t]
            whole = sum(h(j, t) for j in alive)
            found[k, t] = len(alive) * h(k, t) / whole if whole > 0 else 1.0
    return found


def inverse_shares(entropies: dict[int, float]) -> dict[int, float]:
    """m (1/H) / sum 1/H; where some H are 0, these have it all, to equal parts."""
    if sure := [k for k in entropies if entropies[k] == 0]:
        return {k: len(entropies) / len(sure) if k in sure else 0.0 for k in entropies}
    whole = sum(1 / h for h in entropies.values())
    return {k: len(entropies) / h / whole for k, h in entropies.items()}


def gtpo(v: View, i: int, t: int, version: int) -> Tensor:
    members = v.peers(i)
    wins, losses = [k for k in members if v.rewards[k] > 0], [k for k in members if v.rewards[k] <= 0]
    share = token_shares(v, wins, lambda k, t: v.h_old[k][t])
    shaped = {(k, u): 0.0 for k in members for u in range(v.T[k])}
    if version == 2 and i in losses:
        for u in range(max(v.T[k] for k in losses)):
            taken = inverse_shares({k: v.h_old[k][u] for k in losses if v.T[k] > u})
            shaped |= {(k, u): -share for k, share in taken.items()}
    elif version == 451:
        buffer = 0.2 * v.L
        length = {k: max(-1.0, min(0.0, (v.L - buffer - v.T[k]) / buffer)) for k in wins}
        shaped |= {key: min(max(0.9 + 0.1 * d, 1.0), 0.9 + 0.9 / 2) + length[key[0]] for key, d in share.items()}
    else:
        shaped |= {key: 1 + 0.1 * d for key, d in share.items()}
    return ppo(ratio(v, i, t), normalised(shaped, (i, t)), 0.2, 0.28)


def grpo_s(v: View, i: int, t: int, version: int) -> Tensor:
    members = v.peers(i)
    wins, losses = [k for k in members if v.rewards[k] > 0], [k for k in members if v.rewards[k] <= 0]
    mean = {k: statistics.fmean(v.h_old[k]) if v.T[k] else 0.0 for k in members}
    shaped = dict.fromkeys(members, 0.0)
    if version == 2 and i in losses:
        shaped |= {k: -share for k, share in inverse_shares({k: mean[k] for k in losses}).items()}
    else:
        total = sum(mean[k] for k in wins)
        shaped |= {k: 1 + 0.1 * (len(wins) * mean[k] / total if total > 0 else 1.0) for k in wins}
    w = sum(ratio(v, i, s) for s in range(v.T[i])) / v.T[i]
    return ppo(w, normalised(shaped, i), 0.2, 0.28)


OTHERS: dict[str, Row] = {
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "steer": steer,
    "gtpo": mean("tokens", gtpo, version=1),
    "gtpo_clipped": mean("tokens", gtpo, version=451),
    "gtpo_v2": mean("tokens", gtpo, version=2),
    "grpo_s": mean("responses", grpo_s, version=1),
    "grpo_s_v2": mean("responses", grpo_s, version=2),
    "m2po": m2po,
    "dgpo": mean("tokens", dgpo),
    "cppo": cppo,
    "gvpo": in_groups(gvpo),
    "target_po": in_groups(target_po),
    "maspo": mean("tokens", maspo),
    "kpop": weighted("responses", 0.2, kpop),
    "length_penalty": dppo(tv_away, shortened, 0.001),
    "distillation": mean("tokens", distillation),
    "spo": clipped("tokens", 0.2, 0.28, tracked),
    "importance_sampling": mean("sums", lambda v, i, t: to_sampler(v, i, t) * centred(v, i)),
    "topr": mean("responses", topr),
    "glm_5": mean("tokens", glm_5),
    "seq_mis": weighted("tokens", 0.28, seq_mis),
    "mis": weighted("tokens", 0.28, mis),
    "bypass_ppo": clipped("tokens", 0.2, 0.28, w=to_sampler),
    "bypass_pg_is": mean("tokens", bypass_pg_is),
    "chained_rejection": weighted("tokens", 0.28, chained_rejection),
    "outlier_mask": weighted("tokens", 0.28, outlier_mask),
    "reinforce_pp_no_group": mean("responses", reinforce_pp_no_group),
}
TINKER: dict[str, Row] = {  # its other losses, with the thresholds that it has by default
    "ppo": mean("sums", lambda v, i, t: ppo(to_sampler(v, i, t), centred(v, i), 0.2, 0.2)),
    "cispo": mean(
        "sums", lambda v, i, t: clip(to_sampler(v, i, t).detach(), 0.0, 4.0).item() * centred(v, i) * v.lp[i][t]
    ),
}
