"""Literal formulas of the rows that select tokens or shape rewards by entropy; see literal.py."""

import math
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from tepo.common.randomness import mix, uniform
from tests.unit.objectives.literal import EPS, ZERO, Row, View, group_advantage, log_ratio, mean, ppo, ratio


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


def clip_cov(fraction: float = 2e-4, low: float = 1.0, high: float = 5.0, salt: int = 0) -> Row:
    def j(v: View) -> Tensor:
        found = covariances(v)
        candidates = []
        for i, t in v.tokens():
            r, a = ratio(v, i, t).item(), group_advantage(v, i)
            clipped = min(max(r, 0.0), 2.0) * a < r * a
            if low < found[i, t] < high and not clipped:
                candidates.append((draw(v, salt, i, t), i, t))
        dropped = {(i, t) for _, i, t in sorted(candidates)[: max(int(fraction * v.N), 1)]}

        def term(v: View, i: int, t: int) -> Tensor:
            return ZERO if (i, t) in dropped else ppo(ratio(v, i, t), group_advantage(v, i), 1.0, 1.0)

        return mean("tokens", term)(v)

    return j


def kl_cov(fraction: float = 2e-3, salt: int = 0) -> Row:
    def j(v: View) -> Tensor:
        found = covariances(v)
        order = sorted(v.tokens(), key=lambda key: (-found[key], draw(v, salt, *key)))
        top = set(order[: max(1, int(fraction * v.N))])

        def term(v: View, i: int, t: int) -> Tensor:
            gain = ratio(v, i, t) * group_advantage(v, i)
            return gain - torch.abs(log_ratio(v, i, t)) if (i, t) in top else gain

        return mean("tokens", term)(v)

    return j


def steer(
    form: str = "code", shape: str = "exponential", floor: float = 0.8, ceiling: float = 1.0, scale_floor: float = 0.02
) -> Row:
    def j(v: View) -> Tensor:
        size = {}
        for i, t in v.tokens():
            x, a, r = math.exp(v.lp[i][t].item()), group_advantage(v, i), ratio(v, i, t).item()
            f = x * (1 - x) * (math.log(x) + v.h_old[i][t])
            if form == "code":
                size[i, t] = abs(a / math.exp(v.lo[i][t]) * f)
            else:
                clipped = (a > 0 and r > 1.28) or (a < 0 and r < 0.8)
                size[i, t] = 0.0 if clipped else abs(r * a * f)
        top, bottom = max(size.values()), min(size.values())

        def weight(i: int, t: int) -> float:
            if shape == "exponential":
                return min(max(math.exp(math.log(floor) / max(top, scale_floor) * size[i, t]), floor), 1.0)
            return ceiling + (floor - ceiling) * (size[i, t] - bottom) / (top - bottom)

        return mean("tokens", lambda v, i, t: weight(i, t) * ppo(ratio(v, i, t), group_advantage(v, i), 0.2, 0.28))(v)

    return j


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


def gtpo(version: int) -> Row:
    def advantage(v: View, i: int, t: int) -> float:
        members = v.peers(i)
        wins, losses = [k for k in members if v.rewards[k] > 0], [k for k in members if v.rewards[k] <= 0]
        share = token_shares(v, wins, lambda k, t: v.h_old[k][t])
        everything = [(k, u) for k in members for u in range(v.T[k])]
        if version == 451:
            limit = v.case.limit
            buffer = 0.2 * limit

            def length(k: int) -> float:
                return 0.0 if v.T[k] <= limit - buffer else max(-1.0, (limit - buffer - v.T[k]) / buffer)

            raised = {
                key: min(max(0.9 + 0.1 * share[key], 1.0), 0.9 + 0.9 / 2) + length(key[0]) if key in share else 0.0
                for key in everything
            }
        else:
            raised = {key: 1 + 0.1 * share[key] if key in share else 0.0 for key in everything}
        if version == 2 and i in losses:
            lowered = {}
            for u in range(max(v.T[k] for k in losses)):
                taken = inverse_shares({k: v.h_old[k][u] for k in losses if v.T[k] > u})
                lowered |= {(k, u): share for k, share in taken.items()}
            return normalised({key: -lowered.get(key, 0.0) for key in everything}, (i, t))
        return normalised(raised, (i, t))

    return mean("tokens", lambda v, i, t: ppo(ratio(v, i, t), advantage(v, i, t), 0.2, 0.28))


def grpo_s(version: int) -> Row:
    def advantage(v: View, i: int) -> float:
        members = v.peers(i)
        wins, losses = [k for k in members if v.rewards[k] > 0], [k for k in members if v.rewards[k] <= 0]
        mean = {k: statistics.fmean(v.h_old[k]) if v.T[k] else 0.0 for k in members}
        if version == 2 and i in losses:
            taken = inverse_shares({k: mean[k] for k in losses})
            return normalised({k: -taken.get(k, 0.0) for k in members}, i)
        total = sum(mean[k] for k in wins)
        share = {k: len(wins) * mean[k] / total if total > 0 else 1.0 for k in wins}
        return normalised({k: 1 + 0.1 * share[k] if k in wins else 0.0 for k in members}, i)

    def w(v: View, i: int, t: int) -> Tensor:
        return sum(ratio(v, i, s) for s in range(v.T[i])) / v.T[i]

    return mean("responses", lambda v, i, t: ppo(w(v, i, t), advantage(v, i), 0.2, 0.28))


SELECTED: dict[str, Row] = {
    "clip_cov": clip_cov(),
    "kl_cov": kl_cov(),
    "steer": steer(),
    "gtpo": gtpo(1),
    "gtpo_clipped": gtpo(451),
    "gtpo_v2": gtpo(2),
    "grpo_s": grpo_s(1),
    "grpo_s_v2": grpo_s(2),
}
