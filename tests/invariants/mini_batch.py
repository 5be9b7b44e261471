"""A mini-batch of 36 responses of a tabular policy: its gradient and metrics, whole and in parts."""

from dataclasses import replace

import torch
from torch import Tensor

from tepo.objectives import Metrics, Objective, Plan, TokenBatch
from tepo.objectives.testing.case import TabularCase, make_case

SALT = 3


def prepared_case(objective: Objective, dtype: torch.dtype = torch.float64) -> tuple[TabularCase, TokenBatch]:
    """The case and its mini-batch, whose log-probs and entropies have a graph down to the logits."""
    case = make_case(21, repeat=4, dtype=dtype)
    return case, case.batch(objective)


def gradient_of_part(objective: Objective, case: TabularCase, batch: TokenBatch, plan: Plan) -> tuple[Tensor, Metrics]:
    """Gradient of one (micro-)batch's loss by the logits of the full case [N, V], and its metrics."""
    out = objective.loss(batch, plan)
    return torch.autograd.grad(out.loss, case.logits, retain_graph=True)[0], out.metrics


def unsplit(objective: Objective, case: TabularCase, batch: TokenBatch) -> tuple[Tensor, Metrics]:
    """Gradient and metrics of the mini-batch in one piece."""
    return gradient_of_part(objective, case, batch, objective.prepare(batch, salt=SALT))


def split(objective: Objective, case: TabularCase, batch: TokenBatch, parts: list[list[int]]) -> tuple[Tensor, Metrics]:
    """The sum over micro-batches, with one plan, made without log-probs where the objective says it needs none."""
    before = batch if objective.needs.prepass else replace(batch, logprobs=None, entropies=None, full_kl=None)
    plan = objective.prepare(before, salt=SALT)
    done = [gradient_of_part(objective, case, batch.select(part), plan.select(part)) for part in parts]
    metrics = done[0][1]
    for _, more in done[1:]:
        metrics = metrics + more
    return torch.stack([gradient for gradient, _ in done]).sum(0), metrics
