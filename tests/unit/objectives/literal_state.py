"""The literal formulas of rows that read what a run keeps or loads beside its policy."""

import statistics

from torch import Tensor

from tests.unit.objectives.literal import Row, View, centred, clipped, mean, ratio


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


STATE: dict[str, Row] = {"distillation": distillation(0, 1), "spo": clipped("tokens", 0.2, 0.28, tracked)}
