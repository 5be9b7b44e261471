"""Literal formulas of the rows that newer papers and trainers brought; see literal.py."""

import itertools
import math
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from tests.unit.objectives.literal import EPS, View, clip, group_advantage, ppo, sequence_mean, token_mean


def centred(v: View, i: int) -> float:
    return group_advantage(v, i, std=False)


def mean_over(v: View, i: int, term: Callable[[int], Tensor]) -> Tensor:
    return sum(term(t) for t in range(v.T[i])) / v.T[i]


def dppo(
    beyond: Callable[[float, float, float], bool],
    advantage: Callable[[View, int], float] = group_advantage,
    squared: float = 0.0,
) -> Callable[[View], Tensor]:
    """beyond: (pi, pi_old, A) of a token that leaves the gradient."""

    def term(v: View, i: int, t: int) -> Tensor:
        a, p, q = advantage(v, i), math.exp(v.lp[i][t].item()), math.exp(v.lo[i][t])
        gain = torch.zeros(()) if beyond(p, q, a) else v.ratio(i, t) * a
        return gain - squared * (v.lp[i][t] - v.lo[i][t]) ** 2

    return lambda v: token_mean(v, lambda i, t: term(v, i, t))


def tv_away(p: float, q: float, a: float, bound: float = 0.2) -> bool:
    return (a > 0 and p - q > bound) or (a < 0 and q - p > bound)


def kl_away(p: float, q: float, a: float, bound: float = 0.05) -> bool:
    kl = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    return kl > bound and ((a > 0 and p > q) or (a < 0 and p < q))


def opsm(threshold: float = 0.5) -> Callable[[View], Tensor]:
    def term(v: View, i: int) -> Tensor:
        drift = sum(v.lo[i][t] - v.lp[i][t].item() for t in range(v.T[i])) / v.T[i]
        if centred(v, i) < 0 and drift > threshold:
            return torch.zeros(())
        return mean_over(v, i, lambda t: ppo(v.ratio(i, t), centred(v, i), 0.2, 0.2))

    return lambda v: sequence_mean(v, lambda i: term(v, i))


def gap(v: View, i: int, t: int) -> float:
    return v.lo[i][t] - v.ls[i][t]


def icepop(v: View) -> Tensor:
    def term(i: int, t: int) -> Tensor:
        ratio = math.exp(gap(v, i, t))
        return (ratio if 0.5 <= ratio <= 5.0 else 0.0) * ppo(v.ratio(i, t), group_advantage(v, i), 0.2, 0.2)

    return sequence_mean(v, lambda i: mean_over(v, i, lambda t: term(i, t)))


def products(v: View) -> dict[int, float]:
    return {i: math.prod(math.exp(gap(v, i, t)) for t in range(v.T[i])) for i in range(len(v.T)) if v.T[i]}


def tis_normalized(v: View) -> Tensor:
    """A weight a response, over their mean."""
    weights = {i: min(w, 2.0) for i, w in products(v).items()}
    mean = statistics.fmean(weights.values())
    return token_mean(v, lambda i, t: weights[i] / mean * ppo(v.ratio(i, t), group_advantage(v, i), 0.2, 0.28))


def tis(v: View) -> Tensor:
    def weight(i: int, t: int) -> float:
        return min(max(math.exp(gap(v, i, t)), 0.5), 2.0)

    return token_mean(v, lambda i, t: weight(i, t) * ppo(v.ratio(i, t), group_advantage(v, i), 0.2, 0.28))


def rejected(kept: Callable[[list[float]], bool], weight: Callable[[float], float]) -> Callable[[View], Tensor]:
    """kept: whether a response with these gaps stays; weight: of a token by its gap."""

    def term(v: View, i: int, t: int) -> Tensor:
        if not kept([gap(v, i, s) for s in range(v.T[i])]):
            return torch.zeros(())
        return weight(gap(v, i, t)) * ppo(v.ratio(i, t), group_advantage(v, i), 0.2, 0.28)

    return lambda v: token_mean(v, lambda i, t: term(v, i, t))


def with_advantage(advantage: Callable[[View, int], float], low: float, high: float) -> Callable[[View], Tensor]:
    return lambda v: token_mean(v, lambda i, t: ppo(v.ratio(i, t), advantage(v, i), low, high))


def max_rl(v: View, i: int) -> float:
    mean = statistics.fmean(v.rewards[k] for k in v.peers(i))
    return (v.rewards[i] - mean) / mean if mean > 0 else 0.0


def pass_at_k(k: int) -> Callable[[View, int], float]:
    """By every set of k responses: its reward is 1 if one of them succeeds; a response has the mean advantage of its
    sets."""

    def advantage(v: View, i: int) -> float:
        members = v.peers(i)
        if len(members) < k or len({v.rewards[m] > 0 for m in members}) == 1:
            return 0.0
        sets = {chosen: float(any(v.rewards[m] > 0 for m in chosen)) for chosen in itertools.combinations(members, k)}
        mean, spread = statistics.fmean(sets.values()), statistics.pstdev(sets.values())
        return statistics.fmean((reward - mean) / (spread + EPS) for chosen, reward in sets.items() if i in chosen)

    return advantage


def best_of_group(v: View, i: int) -> float:
    rewards = [v.rewards[k] for k in v.peers(i)]
    first, second = sorted(rewards, reverse=True)[:2]
    return (first - second) / (statistics.stdev(rewards) + EPS) if v.rewards[i] == first else 0.0


def batch_scaled(v: View, i: int) -> float:
    return centred(v, i) / (statistics.stdev(v.rewards) + EPS)


def gdpo(v: View, i: int) -> float:
    limit, buffer = v.case.limit, 0.2 * v.case.limit
    punished = [-min(max((length - (limit - buffer)) / buffer, 0.0), 1.0) for length in v.T]

    def normalised(values: list[float], k: int) -> float:
        own = [values[m] for m in v.peers(k)]
        return 0.0 if len(set(own)) == 1 else (values[k] - statistics.fmean(own)) / (statistics.stdev(own) + EPS)

    total = [normalised(v.rewards, k) + normalised(punished, k) for k in range(len(v.T))]
    return (total[i] - statistics.fmean(total)) / (statistics.stdev(total) + EPS)


def opo(v: View) -> Tensor:
    def term(i: int) -> Tensor:
        baseline = sum(v.T[k] * v.rewards[k] for k in v.peers(i)) / sum(v.T[k] for k in v.peers(i))
        alike = len({v.rewards[k] for k in v.peers(i)}) == 1
        return (0.0 if alike else v.rewards[i] - baseline) * sum(v.lp[i])

    return sequence_mean(v, term)


def dro(v: View) -> Tensor:
    def term(i: int) -> Tensor:
        whole = sum(v.lp[i][t] - v.lo[i][t] for t in range(v.T[i]))
        return centred(v, i) * sum(v.lp[i]) - 0.05 / 2 * whole**2

    return sequence_mean(v, term)


def kimi(low: float, high: float) -> Callable[[View], Tensor]:
    """low, high: bounds of the ratio."""
    return lambda v: token_mean(
        v, lambda i, t: clip(v.ratio(i, t), low, high) * centred(v, i) - 0.001 * (v.lp[i][t] - v.lo[i][t]) ** 2
    )


def vespo(to_sampler: bool) -> Callable[[View], Tensor]:
    def term(v: View, i: int, t: int) -> Tensor:
        below = v.ls if to_sampler else v.lo
        w, a = math.exp(sum(v.lp[i][s].item() - below[i][s] for s in range(v.T[i]))), group_advantage(v, i)
        k, c = (2, 3) if a >= 0 else (3, 2)
        return math.exp(c) * w**k * math.exp(-c * w) * a * v.lp[i][t]

    return lambda v: token_mean(v, lambda i, t: term(v, i, t))


def top_entropy(fraction: float = 0.2, *, over_kept: bool = False) -> Callable[[View], Tensor]:
    def j(v: View) -> Tensor:
        order = sorted(v.tokens(), key=lambda key: -v.h[key[0]][key[1]].item())
        top = order[: max(1, int(fraction * v.N))]
        gains = sum(ppo(v.ratio(i, t), group_advantage(v, i), 0.2, 0.28) for i, t in top)
        return gains / (len(top) if over_kept else v.N)

    return j


def trust_region(kept: Callable[[list[float]], bool]) -> Callable[[View], Tensor]:
    """GRPO/DAPO on the responses whose log-ratios of the current policy to the sampler's are `kept`."""

    def term(v: View, i: int, t: int) -> Tensor:
        if not kept([v.lp[i][s].item() - v.ls[i][s] for s in range(v.T[i])]):
            return torch.zeros(())
        return ppo(v.ratio(i, t), group_advantage(v, i), 0.2, 0.28)

    return lambda v: token_mean(v, lambda i, t: term(v, i, t))


def drpo(delta: float = 12.5) -> Callable[[View], Tensor]:
    """Eq. 8, mu the sampler's, over the length limit."""

    def term(v: View, i: int, t: int) -> Tensor:
        a, mu = centred(v, i), math.exp(v.ls[i][t])
        r = torch.exp(v.lp[i][t]) / mu
        return r * a - abs(a) / (2 * delta) * mu * (r - 1) ** 2

    return lambda v: sequence_mean(v, lambda i: sum(term(v, i, t) for t in range(v.T[i])) / v.case.limit)


def mhpo(
    c: float = 1.5, k: tuple[float, float] = (1.5, 2.0), scale: tuple[float, float] = (1.0, 0.8)
) -> Callable[[View], Tensor]:
    """k, scale: where the ratio rose, and where it fell."""

    def term(v: View, i: int, t: int) -> Tensor:
        psi = c * torch.tanh(torch.log(v.ratio(i, t)) / c)
        rise, fall = (math.log(1 + math.exp(sign * psi.item())) for sign in (1, -1))
        zeta = (rise / scale[0]) ** k[0] + (fall / scale[1]) ** k[1]
        return torch.exp(psi - zeta) * group_advantage(v, i)

    return lambda v: sequence_mean(v, lambda i: mean_over(v, i, lambda t: term(v, i, t)))


NEWER: dict[str, Callable[[View], Tensor]] = {
    "drpo": drpo(),
    "mhpo": mhpo(),
    "dppo_tv": dppo(tv_away),
    "dppo_kl": dppo(kl_away),
    "opsm": opsm(),
    "icepop": icepop,
    "max_rl": with_advantage(max_rl, 0.2, 0.28),
    "vespo": vespo(to_sampler=False),
    "vespo_sampler": vespo(to_sampler=True),
    "top_entropy": top_entropy(),
    "top_entropy_v2": top_entropy(over_kept=True),
    "dro": dro,
    "kimi_k2_5": kimi(0.8, 1.28),
    "kimi_k2_5_log_ratio": kimi(math.exp(-0.2), math.exp(0.28)),
    "dppo_squared_kl": dppo(tv_away, centred, 0.001),
    "ipo": dppo(lambda p, q, a: abs(p - q) > 0.1, centred, 0.001),
    "opo": opo,
    "pass_at_k": with_advantage(pass_at_k(2), 0.2, 0.28),
    "best_of_group": with_advantage(best_of_group, 0.2, 0.2),
    "lite_ppo": with_advantage(batch_scaled, 0.2, 0.2),
    "gdpo": with_advantage(gdpo, 0.2, 0.28),
    "tis": tis,
    "tis_normalized": tis_normalized,
    "seq_mask_tis": rejected(
        lambda gaps: 0.5 <= math.exp(statistics.fmean(gaps)) <= 2.0, lambda g: min(math.exp(g), 2.0)
    ),
    "trm": rejected(lambda gaps: max(g * g / 2 for g in gaps) <= 2.5, lambda g: 1.0),
    "trm_current": trust_region(lambda gaps: max(g * g / 2 for g in gaps) <= 2.5),
}
