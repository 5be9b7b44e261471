"""The papers' formulas once more, to the letter and in loops: J of each method from a TabularCase, by its logits.

Written apart from tepo/objectives: plain Python numbers for everything detached, `if` for every clip, autograd for the
rest. literal_others.py goes on."""

import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tepo.objectives.testing.case import TabularCase

EPS = 1e-6


class View:
    """A case as nested lists: lp[i][t] with gradient; lo, l0, ls, h_old as numbers."""

    def __init__(self, case: TabularCase):
        self.case = case

        def split(values: Tensor) -> list[list[Tensor]]:
            return [list(values[begin:end]) for begin, end in zip(case.offsets, case.offsets[1:], strict=False)]

        def numbers(values: Tensor) -> list[list[float]]:
            return [[float(value) for value in row] for row in split(values)]

        self.lp = split(case.chosen(case.logits))
        self.h = split(case.entropy(case.logits))
        self.lo = numbers(case.chosen(case.old_logits))
        self.l0 = numbers(case.chosen(case.initial_logits))
        self.ls = numbers(case.chosen(case.sampler_logits))
        self.h_old = numbers(case.entropy(case.old_logits))
        self.rewards = case.rewards.tolist()
        self.T = case.lengths.tolist()
        self.N = sum(self.T)
        self.B = sum(length > 0 for length in self.T)
        self.L = case.limit
        self.groups: dict[int, list[int]] = {}
        for i, group in enumerate(case.group_ids.tolist()):
            self.groups.setdefault(group, []).append(i)

    def peers(self, i: int) -> list[int]:
        return next(members for members in self.groups.values() if i in members)

    def tokens(self) -> Iterator[tuple[int, int]]:
        return ((i, t) for i in range(len(self.T)) for t in range(self.T[i]))


Row = Callable[[View], Tensor]
Term = Callable[..., Tensor]  # of view, i, t and constants
Advantage = Callable[[View, int], float]
WEIGHTS: dict[str, Callable[[View, int], float]] = {
    "tokens": lambda v, i: 1 / v.N,
    "responses": lambda v, i: 1 / (v.B * v.T[i]),
    "sums": lambda v, i: 1 / v.B,
    "budget": lambda v, i: 1 / (v.B * v.L),
}
ZERO = torch.zeros(())


def mean(average: str, term: Term, **constants: Any) -> Row:
    return lambda v: sum(WEIGHTS[average](v, i) * term(v, i, t, **constants) for i, t in v.tokens())


# ratios, clips and KLs ------------------------------------------------------------------------------------------------
def log_ratio(v: View, i: int, t: int) -> Tensor:
    return v.lp[i][t] - v.lo[i][t]


def ratio(v: View, i: int, t: int) -> Tensor:
    return torch.exp(log_ratio(v, i, t))


def geometric(v: View, i: int, t: int) -> Tensor:
    return torch.exp(sum(log_ratio(v, i, s) for s in range(v.T[i])) / v.T[i])


def held(value: float, lp: Tensor) -> Tensor:
    """A ratio with this value and the token's own gradient."""
    return value * torch.exp(lp) / torch.exp(lp).detach()


def prefix(v: View, i: int, t: int) -> Tensor:
    return held(math.exp(sum(log_ratio(v, i, s).item() for s in range(t + 1)) / (t + 1)), v.lp[i][t])


def clip(x: Tensor, low: float, high: float) -> Tensor:
    return x * 0 + low if x < low else x * 0 + high if x > high else x


def ppo(w: Tensor, a: float, low: float, high: float) -> Tensor:
    one, other = w * a, clip(w, 1 - low, 1 + high) * a
    return one if one <= other else other


def k3(lp: Tensor, anchor: float) -> Tensor:
    return torch.exp(anchor - lp) - (anchor - lp) - 1


def gap(v: View, i: int, t: int) -> float:
    return v.lo[i][t] - v.ls[i][t]


# advantages -----------------------------------------------------------------------------------------------------------
def centred(v: View, i: int) -> float:
    return v.rewards[i] - statistics.fmean(v.rewards[k] for k in v.peers(i))


def group_advantage(v: View, i: int) -> float:
    return centred(v, i) / (statistics.stdev(v.rewards[k] for k in v.peers(i)) + EPS)


def of_valid_groups(v: View, i: int) -> float:
    valid = sum(len(members) for members in v.groups.values() if len({v.rewards[k] for k in members}) > 1)
    return centred(v, i) * len(v.T) / valid


def whitened(v: View, i: int) -> float:
    every = [centred(v, k) for k, _ in v.tokens()]
    return (centred(v, i) - statistics.fmean(every)) / math.sqrt(statistics.variance(every) + 1e-8)


def leave_one_out(v: View, i: int) -> float:
    return v.rewards[i] - statistics.fmean(v.rewards[k] for k in v.peers(i) if k != i)


def max_rl(v: View, i: int) -> float:
    average = statistics.fmean(v.rewards[k] for k in v.peers(i))
    return (v.rewards[i] - average) / average if average > 0 else 0.0


def pass_at_k(v: View, i: int, k: int = 2) -> float:
    """By every set of k responses: its reward is 1 if one of them succeeds; a response has the mean advantage of its
    sets."""
    members = v.peers(i)
    if len(members) < k or len({v.rewards[m] > 0 for m in members}) == 1:
        return 0.0
    sets = {chosen: float(any(v.rewards[m] > 0 for m in chosen)) for chosen in itertools.combinations(members, k)}
    average, spread = statistics.fmean(sets.values()), statistics.pstdev(sets.values())
    return statistics.fmean((reward - average) / (spread + EPS) for chosen, reward in sets.items() if i in chosen)


def best_of_group(v: View, i: int) -> float:
    rewards = [v.rewards[k] for k in v.peers(i)]
    first, second = sorted(rewards, reverse=True)[:2]
    return (first - second) / (statistics.stdev(rewards) + EPS) if v.rewards[i] == first else 0.0


def batch_scaled(v: View, i: int) -> float:
    return centred(v, i) / (statistics.stdev(v.rewards) + EPS)


def gdpo(v: View, i: int) -> float:
    buffer = 0.2 * v.L
    punished = [-min(max((length - (v.L - buffer)) / buffer, 0.0), 1.0) for length in v.T]

    def normalised(values: list[float], k: int) -> float:
        own = [values[m] for m in v.peers(k)]
        return 0.0 if len(set(own)) == 1 else (values[k] - statistics.fmean(own)) / (statistics.stdev(own) + EPS)

    total = [normalised(v.rewards, k) + normalised(punished, k) for k in range(len(v.T))]
    return (total[i] - statistics.fmean(total)) / (statistics.stdev(total) + EPS)


def by_length(v: View, i: int) -> float:
    members = v.peers(i)
    alike = len({v.rewards[k] for k in members}) == 1
    return 0.0 if alike else v.rewards[i] - sum(v.T[k] * v.rewards[k] for k in members) / sum(v.T[k] for k in members)


# methods --------------------------------------------------------------------------------------------------------------
def clipped(average: str, low: float, high: float, advantage: Advantage = group_advantage, w: Term = ratio) -> Row:
    return mean(average, lambda v, i, t: ppo(w(v, i, t), advantage(v, i), low, high))


def reinforce(average: str, advantage: Advantage) -> Row:
    return mean(average, lambda v, i, t: advantage(v, i) * v.lp[i][t])


tepo_no_kl = clipped("tokens", 0.2, 0.28, w=geometric)


def tepo(mask: Callable[[float, float], bool]) -> Row:
    def kl(v: View, i: int, t: int) -> Tensor:
        acts = mask(group_advantage(v, i), v.h[i][t].item() - v.h_old[i][t])
        return k3(v.lp[i][t], v.lo[i][t]) if acts else ZERO

    return lambda v: tepo_no_kl(v) - 0.001 * mean("tokens", kl)(v)


def tepo_entropy(c: float) -> Row:
    return lambda v: tepo_no_kl(v) + c * mean("tokens", lambda v, i, t: v.h[i][t])(v)


def entropy_advantage(v: View, i: int, t: int) -> Tensor:
    a = group_advantage(v, i)
    return ppo(ratio(v, i, t), a + min(0.4 * v.h[i][t].item(), abs(a) / 2), 0.2, 0.28)


def gmpo(v: View, i: int, t: int) -> Tensor:
    a, total = group_advantage(v, i), ZERO
    for s in range(v.T[i]):
        d = log_ratio(v, i, s)
        total = total + ((0.4 + 0 * d if d > 0.4 else d) if a > 0 else (-0.4 + 0 * d if d < -0.4 else d))
    return a * torch.exp(total / v.T[i])


def sapo(v: View, i: int, t: int) -> Tensor:
    a = group_advantage(v, i)
    tau = 1.0 if a > 0 else 1.05
    return a * 4 / tau / (1 + torch.exp(-tau * (ratio(v, i, t) - 1)))


def dppo(
    beyond: Callable[[float, float, float], bool], advantage: Advantage = group_advantage, squared: float = 0.0
) -> Row:
    """beyond: (pi, pi_old, A) of a token that leaves the gradient."""

    def term(v: View, i: int, t: int) -> Tensor:
        a, p, q = advantage(v, i), math.exp(v.lp[i][t].item()), math.exp(v.lo[i][t])
        return (ZERO if beyond(p, q, a) else ratio(v, i, t) * a) - squared * log_ratio(v, i, t) ** 2

    return mean("tokens", term)


def tv_away(p: float, q: float, a: float, bound: float = 0.2) -> bool:
    return (a > 0 and p - q > bound) or (a < 0 and q - p > bound)


def binary_kl(p: float, q: float) -> float:
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def kl_away(p: float, q: float, a: float, bound: float = 0.05) -> bool:
    return binary_kl(q, p) > bound and ((a > 0 and p > q) or (a < 0 and p < q))


def opsm(v: View, i: int, t: int, threshold: float = 0.5) -> Tensor:
    drift = sum(v.lo[i][s] - v.lp[i][s].item() for s in range(v.T[i])) / v.T[i]
    left = centred(v, i) < 0 and drift > threshold
    return ZERO if left else ppo(ratio(v, i, t), centred(v, i), 0.2, 0.2)


def weighted(average: str, high: float, weight: Callable[..., float], **constants: Any) -> Row:
    """GRPO/DAPO where each token weighs by what sampler and trainer say."""

    def term(v: View, i: int, t: int) -> Tensor:
        return weight(v, i, t, **constants) * ppo(ratio(v, i, t), group_advantage(v, i), 0.2, high)

    return mean(average, term)


def tis(v: View, i: int, t: int) -> float:
    return min(max(math.exp(gap(v, i, t)), 0.5), 2.0)


def icepop(v: View, i: int, t: int) -> float:
    return math.exp(gap(v, i, t)) if 0.5 <= math.exp(gap(v, i, t)) <= 5.0 else 0.0


def tis_normalized(v: View, i: int, t: int) -> float:
    """A weight a response, over their mean."""
    every = {k: min(math.exp(sum(gap(v, k, s) for s in range(v.T[k]))), 2.0) for k in range(len(v.T)) if v.T[k]}
    return every[i] / statistics.fmean(every.values())


def seq_mask_tis(v: View, i: int, t: int) -> float:
    kept = 0.5 <= math.exp(statistics.fmean(gap(v, i, s) for s in range(v.T[i]))) <= 2.0
    return kept * min(math.exp(gap(v, i, t)), 2.0)


def trm(v: View, i: int, t: int) -> float:
    return float(max(gap(v, i, s) ** 2 / 2 for s in range(v.T[i])) <= 2.5)


def trust_region(kept: Callable[[list[float]], bool]) -> Row:
    """GRPO/DAPO on the responses whose log-ratios of the current policy to the sampler's are `kept`."""
    return weighted("tokens", 0.28, lambda v, i, t: kept([v.lp[i][s].item() - v.ls[i][s] for s in range(v.T[i])]))


def dro(v: View, i: int, t: int) -> Tensor:
    whole = sum(log_ratio(v, i, s) for s in range(v.T[i]))
    return centred(v, i) * v.lp[i][t] - 0.05 / 2 * whole**2 / v.T[i]


def kimi(v: View, i: int, t: int, low: float = 0.8, high: float = 1.28) -> Tensor:
    """low, high: bounds of the ratio."""
    return clip(ratio(v, i, t), low, high) * centred(v, i) - 0.001 * log_ratio(v, i, t) ** 2


def vespo(v: View, i: int, t: int, *, to_sampler: bool = False) -> Tensor:
    below = v.ls if to_sampler else v.lo
    w, a = math.exp(sum(v.lp[i][s].item() - below[i][s] for s in range(v.T[i]))), group_advantage(v, i)
    k, c = (2, 3) if a >= 0 else (3, 2)
    return math.exp(c) * w**k * math.exp(-c * w) * a * v.lp[i][t]


def top_entropy(v: View, fraction: float = 0.2, *, over_kept: bool = False) -> Tensor:
    order = sorted(v.tokens(), key=lambda key: -v.h[key[0]][key[1]].item())
    top = order[: max(1, int(fraction * v.N))]
    gains = sum(ppo(ratio(v, i, t), group_advantage(v, i), 0.2, 0.28) for i, t in top)
    return gains / (len(top) if over_kept else v.N)


def drpo(v: View, i: int, t: int, delta: float = 12.5) -> Tensor:
    """Eq. 8, mu the sampler's, over the length limit."""
    a, mu = centred(v, i), math.exp(v.ls[i][t])
    r = torch.exp(v.lp[i][t]) / mu
    return r * a - abs(a) / (2 * delta) * mu * (r - 1) ** 2


Pair = tuple[float, float]


def mhpo(v: View, i: int, t: int, c: float = 1.5, k: Pair = (1.5, 2.0), scale: Pair = (1.0, 0.8)) -> Tensor:
    """k, scale: where the ratio rose, and where it fell."""
    psi = c * torch.tanh(log_ratio(v, i, t) / c)
    rise, fall = (math.log(1 + math.exp(sign * psi.item())) for sign in (1, -1))
    zeta = (rise / scale[0]) ** k[0] + (fall / scale[1]) ** k[1]
    return torch.exp(psi - zeta) * group_advantage(v, i)


LITERAL: dict[str, Row] = {
    "grpo": lambda v: (
        clipped("responses", 0.2, 0.2)(v) - 0.04 * mean("responses", lambda v, i, t: k3(v.lp[i][t], v.l0[i][t]))(v)
    ),
    "grpo_dapo": clipped("tokens", 0.2, 0.28),
    "dr_grpo": clipped("budget", 0.2, 0.2, centred),
    "gspo": clipped("responses", 3e-4, 4e-4, w=geometric),
    "gspo_token": clipped("responses", 3e-4, 4e-4, w=lambda v, i, t: held(geometric(v, i, t).item(), v.lp[i][t])),
    "tepo_no_kl": tepo_no_kl,
    "tepo": tepo(lambda a, change: a > 0 and change < 0),
    "tepo_kl_negative": tepo(lambda a, change: a < 0 and change > 0),
    "tepo_kl_both": tepo(lambda a, change: (a > 0 and change < 0) or (a < 0 and change > 0)),
    "tepo_kl_all": tepo(lambda a, change: True),
    "tepo_max_entropy": tepo_entropy(0.001),
    "tepo_min_entropy": tepo_entropy(-0.001),
    "entropy_advantage": mean("tokens", entropy_advantage),
    "gpg": reinforce("tokens", of_valid_groups),
    "cispo": mean("tokens", lambda v, i, t: min(ratio(v, i, t).item(), 1.28) * group_advantage(v, i) * v.lp[i][t]),
    "reinforce": reinforce("tokens", group_advantage),
    "prefix_is": clipped("tokens", 0.2, 0.28, w=prefix),
    "seq_mean_token_mean": clipped("responses", 0.2, 0.28, w=geometric),
    "seq_mean_token_sum": clipped("sums", 0.2, 0.28, w=geometric),
    "gmpo": mean("responses", gmpo),
    "sapo": mean("responses", sapo),
    "luspo": clipped("sums", 2e-3, 2.5e-3, w=geometric),
    "reinforce_pp": clipped("tokens", 0.2, 0.2, whitened),
    "rloo": reinforce("sums", leave_one_out),
    "drpo": mean("budget", drpo),
    "mhpo": mean("responses", mhpo),
    "dppo_tv": dppo(tv_away),
    "dppo_kl": dppo(kl_away),
    "opsm": mean("responses", opsm),
    "icepop": weighted("responses", 0.2, icepop),
    "max_rl": clipped("tokens", 0.2, 0.28, max_rl),
    "vespo": mean("tokens", vespo),
    "vespo_sampler": mean("tokens", vespo, to_sampler=True),
    "top_entropy": top_entropy,
    "top_entropy_v2": partial(top_entropy, over_kept=True),
    "dro": mean("sums", dro),
    "kimi_k2_5": mean("tokens", kimi),
    "kimi_k2_5_log_ratio": mean("tokens", kimi, low=math.exp(-0.2), high=math.exp(0.28)),
    "dppo_squared_kl": dppo(tv_away, centred, 0.001),
    "ipo": dppo(lambda p, q, a: abs(p - q) > 0.1, centred, 0.001),
    "opo": reinforce("sums", by_length),
    "pass_at_k": clipped("tokens", 0.2, 0.28, pass_at_k),
    "best_of_group": clipped("tokens", 0.2, 0.2, best_of_group),
    "lite_ppo": clipped("tokens", 0.2, 0.2, batch_scaled),
    "gdpo": clipped("tokens", 0.2, 0.28, gdpo),
    "tis": weighted("tokens", 0.28, tis),
    "tis_normalized": weighted("tokens", 0.28, tis_normalized),
    "seq_mask_tis": weighted("tokens", 0.28, seq_mask_tis),
    "trm": weighted("tokens", 0.28, trm),
    "trm_current": trust_region(lambda gaps: max(g * g / 2 for g in gaps) <= 2.5),
}
