"""The papers' formulas once more, to the letter and in loops: J of each method from a TabularCase, by its logits.

Written apart from tepo/objectives: plain Python numbers for everything detached, `if` for every clip,
autograd for the rest.
"""

import math
import statistics
from collections.abc import Callable, Iterator

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
        self.groups: dict[int, list[int]] = {}
        for i, group in enumerate(case.group_ids.tolist()):
            self.groups.setdefault(group, []).append(i)

    def peers(self, i: int) -> list[int]:
        return next(members for members in self.groups.values() if i in members)

    def tokens(self) -> Iterator[tuple[int, int]]:
        return ((i, t) for i in range(len(self.T)) for t in range(self.T[i]))

    def ratio(self, i: int, t: int) -> Tensor:
        return torch.exp(self.lp[i][t] - self.lo[i][t])

    def geometric(self, i: int) -> Tensor:
        return torch.exp(sum((self.lp[i][t] - self.lo[i][t] for t in range(self.T[i])), torch.zeros(())) / self.T[i])

    def full(self, i: int, t: int, anchor: Tensor) -> Tensor:
        row = self.case.offsets[i] + t
        p, q = torch.softmax(self.case.logits[row], 0), torch.softmax(anchor[row], 0)
        return sum(p[v] * torch.log(p[v] / q[v]) for v in range(len(p)))


def group_advantage(view: View, i: int, std: bool = True) -> float:
    rewards = [view.rewards[k] for k in view.peers(i)]
    centred = view.rewards[i] - statistics.fmean(rewards)
    return centred / (statistics.stdev(rewards) + EPS) if std else centred


def clip(x: Tensor, low: float, high: float) -> Tensor:
    return x * 0 + low if x < low else x * 0 + high if x > high else x


def smaller(x: Tensor, y: Tensor) -> Tensor:
    return x if x <= y else y


def ppo(w: Tensor, a: float, low: float, high: float) -> Tensor:
    return smaller(w * a, clip(w, 1 - low, 1 + high) * a)


def k3(lp: Tensor, anchor: float) -> Tensor:
    return torch.exp(anchor - lp) - (anchor - lp) - 1


def token_mean(view: View, term: Callable[[int, int], Tensor]) -> Tensor:
    return sum(term(i, t) for i, t in view.tokens()) / view.N


def sequence_mean(view: View, term: Callable[[int], Tensor]) -> Tensor:
    return sum(term(i) for i in range(len(view.T)) if view.T[i]) / view.B


def grpo(v: View) -> Tensor:
    return sequence_mean(
        v,
        lambda i: (
            sum(
                ppo(v.ratio(i, t), group_advantage(v, i), 0.2, 0.2) - 0.04 * k3(v.lp[i][t], v.l0[i][t])
                for t in range(v.T[i])
            )
            / v.T[i]
        ),
    )


def grpo_dapo(v: View) -> Tensor:
    return token_mean(v, lambda i, t: ppo(v.ratio(i, t), group_advantage(v, i), 0.2, 0.28))


def dr_grpo(v: View) -> Tensor:
    return sequence_mean(
        v,
        lambda i: (
            sum(ppo(v.ratio(i, t), group_advantage(v, i, std=False), 0.2, 0.2) for t in range(v.T[i])) / v.case.limit
        ),
    )


def gspo(v: View) -> Tensor:
    return sequence_mean(v, lambda i: ppo(v.geometric(i), group_advantage(v, i), 3e-4, 4e-4))


def gspo_token(v: View) -> Tensor:
    def term(i: int, t: int) -> Tensor:
        s = v.geometric(i).detach() * torch.exp(v.lp[i][t]) / torch.exp(v.lp[i][t]).detach()
        return ppo(s, group_advantage(v, i), 3e-4, 4e-4)

    return sequence_mean(v, lambda i: sum(term(i, t) for t in range(v.T[i])) / v.T[i])


def tepo_no_kl(v: View) -> Tensor:
    return token_mean(v, lambda i, t: ppo(v.geometric(i), group_advantage(v, i), 0.2, 0.28))


def tepo_with(mask: Callable[[float, float], bool]) -> Callable[[View], Tensor]:
    def j(v: View) -> Tensor:
        def kl(i: int, t: int) -> Tensor:
            change = v.h[i][t].item() - v.h_old[i][t]
            return k3(v.lp[i][t], v.lo[i][t]) if mask(group_advantage(v, i), change) else torch.zeros(())

        return tepo_no_kl(v) - 0.001 * token_mean(v, kl)

    return j


def tepo_entropy(c: float) -> Callable[[View], Tensor]:
    return lambda v: tepo_no_kl(v) + c * token_mean(v, lambda i, t: v.h[i][t])


def entropy_advantage(v: View) -> Tensor:
    def term(i: int, t: int) -> Tensor:
        a = group_advantage(v, i)
        return ppo(v.ratio(i, t), a + min(0.4 * v.h[i][t].item(), abs(a) / 2), 0.2, 0.28)

    return token_mean(v, term)


def gpg(v: View) -> Tensor:
    valid = sum(len(members) for members in v.groups.values() if len({v.rewards[k] for k in members}) > 1)
    return token_mean(v, lambda i, t: v.lp[i][t] * (len(v.T) / valid) * group_advantage(v, i, std=False))


def cispo(v: View) -> Tensor:
    return token_mean(v, lambda i, t: min(v.ratio(i, t).item(), 1.28) * group_advantage(v, i) * v.lp[i][t])


def reinforce(v: View) -> Tensor:
    return token_mean(v, lambda i, t: group_advantage(v, i) * v.lp[i][t])


def prefix_is(v: View) -> Tensor:
    def term(i: int, t: int) -> Tensor:
        value = math.exp(sum(v.lp[i][s].item() - v.lo[i][s] for s in range(t + 1)) / (t + 1))
        return ppo(value * torch.exp(v.lp[i][t] - v.lp[i][t].detach()), group_advantage(v, i), 0.2, 0.28)

    return token_mean(v, term)


def seq_mean_token_mean(v: View) -> Tensor:
    return sequence_mean(v, lambda i: ppo(v.geometric(i), group_advantage(v, i), 0.2, 0.28))


def seq_mean_token_sum(v: View) -> Tensor:
    return sequence_mean(v, lambda i: v.T[i] * ppo(v.geometric(i), group_advantage(v, i), 0.2, 0.28))


def gmpo(v: View) -> Tensor:
    def term(i: int) -> Tensor:
        a, total = group_advantage(v, i), torch.zeros(())
        for t in range(v.T[i]):
            d = v.lp[i][t] - v.lo[i][t]
            total = total + ((0.4 + 0 * d if d > 0.4 else d) if a > 0 else (-0.4 + 0 * d if d < -0.4 else d))
        return a * torch.exp(total / v.T[i])

    return sequence_mean(v, term)


def sapo(v: View) -> Tensor:
    def term(i: int, t: int) -> Tensor:
        a = group_advantage(v, i)
        tau = 1.0 if a > 0 else 1.05
        return a * 4 / tau / (1 + torch.exp(-tau * (v.ratio(i, t) - 1)))

    return sequence_mean(v, lambda i: sum(term(i, t) for t in range(v.T[i])) / v.T[i])


def luspo(v: View) -> Tensor:
    return sequence_mean(v, lambda i: v.T[i] * ppo(v.geometric(i), group_advantage(v, i), 2e-3, 2.5e-3))


def reinforce_pp(v: View) -> Tensor:
    centred = [group_advantage(v, i, std=False) for i, _ in v.tokens()]
    mean, variance = statistics.fmean(centred), statistics.variance(centred)
    return token_mean(
        v,
        lambda i, t: ppo(
            v.ratio(i, t), (group_advantage(v, i, std=False) - mean) / math.sqrt(variance + 1e-8), 0.2, 0.2
        ),
    )


def rloo(v: View) -> Tensor:
    def term(i: int) -> Tensor:
        others = [v.rewards[k] for k in v.peers(i) if k != i]
        return (v.rewards[i] - statistics.fmean(others)) * sum(v.lp[i])

    return sequence_mean(v, term)


LITERAL: dict[str, Callable[[View], Tensor]] = {
    "grpo": grpo,
    "grpo_dapo": grpo_dapo,
    "dr_grpo": dr_grpo,
    "gspo": gspo,
    "gspo_token": gspo_token,
    "tepo_no_kl": tepo_no_kl,
    "tepo": tepo_with(lambda a, change: a > 0 and change < 0),
    "tepo_kl_negative": tepo_with(lambda a, change: a < 0 and change > 0),
    "tepo_kl_both": tepo_with(lambda a, change: (a > 0 and change < 0) or (a < 0 and change > 0)),
    "tepo_kl_all": tepo_with(lambda a, change: True),
    "tepo_max_entropy": tepo_entropy(0.001),
    "tepo_min_entropy": tepo_entropy(-0.001),
    "entropy_advantage": entropy_advantage,
    "gpg": gpg,
    "cispo": cispo,
    "reinforce": reinforce,
    "prefix_is": prefix_is,
    "seq_mean_token_mean": seq_mean_token_mean,
    "seq_mean_token_sum": seq_mean_token_sum,
    "gmpo": gmpo,
    "sapo": sapo,
    "luspo": luspo,
    "reinforce_pp": reinforce_pp,
    "rloo": rloo,
}
