"""prime-rl's custom loss by import path, and the advantages of a group for its algorithms:

[trainer.loss]
type = "custom"
import_path = "tepo.integrations.prime_rl.loss"
kwargs = {objective = "grpo_dapo"}

Imports nothing of prime-rl. See docs/trainers-use.md."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.integrations.trainers import PRIME_RL
from tepo.objectives import Groups, Objective, TokenBatch, load_objective


class LossOutputs(NamedTuple):
    """The members of prime-rl's `LossOutputs`."""

    loss: Tensor
    metrics: dict[str, Tensor]


def loss(inputs: Any, objective: str = "grpo_dapo", changes: Mapping[str, Any] | None = None) -> LossOutputs:
    """The sum of a row's terms over one response; prime-rl divides by the tokens of the mini-batch on all ranks.

    inputs: prime-rl's `LossInputs`, one response with its prompt, [seq] each. The old policy is the one that sampled,
    by the sampler's log-probs. changes: constants and lines by name. Raises UserError for a row that reads more than
    one response, or what prime-rl does not give, with the reading that needs less."""
    row = _row(objective, json.dumps(changes or {}))
    mask = inputs.loss_mask
    batch = TokenBatch(
        inputs.inference_logprobs[mask].detach(),
        inputs.advantages[mask].detach(),
        mask.sum().reshape(1),
        logprobs=inputs.trainer_logprobs[mask],
    )
    plan = row.prepare(batch)
    weights = getattr(inputs, "loss_weights", None)
    plan = replace(plan, scale=torch.ones_like(batch.advantages) if weights is None else weights[mask])  # a sum
    out = row.loss(batch, plan)
    if not len(batch.advantages):  # nothing was measured
        return LossOutputs(out.loss, {})
    means = {name: part / number.clamp(min=1e-12) for name, (part, number) in out.metrics.items()}  # not waited for
    return LossOutputs(out.loss, {name: value.float() for name, value in (means | out.metrics.maxima).items()})


def advantages(
    rewards: Sequence[float],
    objective: str = "grpo_dapo",
    changes: Mapping[str, Any] | None = None,
    *,
    lengths: Sequence[int] | None = None,
    max_new_tokens: int | None = None,
) -> list[float]:
    """The advantage of each response of one group, for `score_group` of a prime-rl algorithm.

    lengths: response tokens of each, without those of tools; max_new_tokens: their limit. Raises UserError for a row
    that reads one of these where it is not given (OPO's baseline, a length punishment)."""
    row = _row(objective, json.dumps(changes or {}))
    PRIME_RL.check(row, {"lengths": lengths, "limit": max_new_tokens})
    number = len(rewards)
    if lengths is not None and (len(lengths) != number or min(lengths, default=1) < 1):
        what = f"{len(lengths)} lengths for {number} rewards, the smallest {min(lengths, default=0)}"
        raise UserError(what, where="tepo.integrations.prime_rl.advantages", fix="at least one token a response")
    counts = torch.tensor([1] * number if lengths is None else lengths)
    group = torch.zeros(number, dtype=torch.int64)
    groups = Groups(torch.tensor(rewards, dtype=torch.float64), group, counts, max_new_tokens=max_new_tokens)
    return row.advantages(groups)[counts.cumsum(0) - counts].tolist()  # the same on all tokens of a response


@cache
def _row(name: str, changes: str) -> Objective:
    """The checked row of a name with changes in JSON, which may nest."""
    objective = load_objective(name, json.loads(changes))
    PRIME_RL.check(objective)
    return objective
