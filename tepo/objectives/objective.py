"""An objective is one choice on each axis: advantage, ratio, surrogate, penalty, aggregation. Called in three steps:

advantages = objective.advantages(groups)          # once per rollout
plan = objective.prepare(batch, comm)              # once per mini-batch: denominators and selections, over all ranks
out = objective.loss(micro_batch, plan.select(i))  # each micro-batch: losses just add up, over ranks too
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tepo.objectives import advantage as advantage_axis
from tepo.objectives import aggregation as aggregation_axis
from tepo.objectives import penalty as penalty_axis
from tepo.objectives import ratio as ratio_axis
from tepo.objectives import surrogate as surrogate_axis
from tepo.objectives.batch import Comm, Groups, TokenBatch
from tepo.objectives.metrics import Metrics, token_metrics
from tepo.objectives.segments import token_places


@dataclass(frozen=True)
class Needs:
    """What the trainer has to compute for a row."""

    entropy_gradient: bool = False
    entropies: bool = False
    old_entropies: bool = False
    initial_logprobs: bool = False
    full_kl: bool = False
    prepass: bool = False  # `prepare` wants the current log-probs of the whole mini-batch


@dataclass(frozen=True)
class Plan:
    """Denominators and selections of a mini-batch: detached tensors for each of its tokens, and totals over all ranks."""

    lengths: Tensor
    totals: Tensor
    tokens: dict[str, Tensor]

    def select(self, sequences: Any) -> "Plan":
        """The plan of the given sequences, as `TokenBatch.select`."""
        chosen = torch.as_tensor(sequences, dtype=torch.int64, device=self.lengths.device)
        places = token_places(self.lengths, chosen)
        return Plan(self.lengths[chosen], self.totals, {name: value[places] for name, value in self.tokens.items()})


@dataclass(frozen=True)
class Loss:
    """loss: scalar with a graph, divided by the mini-batch's denominators. tokens: named per-token diagnostics [N], detached."""

    loss: Tensor
    metrics: Metrics
    tokens: dict[str, Tensor]


@dataclass(frozen=True)
class Objective:
    """A composition; see `load_objective`."""

    name: str
    advantage: advantage_axis.GroupNormalized
    ratio: ratio_axis.Ratio
    surrogate: surrogate_axis.Surrogate
    penalties: tuple[penalty_axis.Penalty, ...]
    aggregation: aggregation_axis.Aggregation

    @property
    def needs(self) -> Needs:
        """What the trainer has to compute."""
        masked = any(part.tokens in penalty_axis.MASKED for part in self.penalties)
        return Needs(
            entropies=masked,
            old_entropies=masked,
            initial_logprobs=any(part.anchor == "initial" and part.estimator != "full" for part in self.penalties),
            full_kl=any(part.estimator == "full" for part in self.penalties),
        )

    def advantages(self, groups: Groups, comm: Comm | None = None) -> Tensor:
        """Per-token advantages [N] of a rollout, detached."""
        with torch.no_grad():
            return advantage_axis.advantages(self.advantage, groups, comm)

    def prepare(self, batch: TokenBatch, comm: Comm | None = None, salt: int = 0) -> Plan:
        """Denominators and selections over the whole mini-batch and all ranks; `salt` (seed, step …) varies random draws."""
        with torch.no_grad():
            totals = aggregation_axis.count(batch, comm)
            return Plan(batch.lengths, totals, {"scale": aggregation_axis.token_scale(self.aggregation, batch, totals)})

    def loss(self, batch: TokenBatch, plan: Plan) -> Loss:
        """The loss of a (micro-)batch and its part of the plan."""
        logprobs = ratio_axis.finite_logprobs(batch.want("logprobs", "Objective.loss"))
        d = ratio_axis.log_ratio(logprobs, ratio_axis.finite_logprobs(batch.old_logprobs))
        ratio = ratio_axis.importance_ratio(self.ratio, d, batch)
        assert ratio is not None
        gain = surrogate_axis.gain(self.surrogate, ratio, batch.advantages)
        scale = plan.tokens["scale"]
        loss = policy = -(scale * gain.value).sum()
        totals, tokens = {"actor/pg_loss": policy}, {"ratio": ratio.detach(), "clipped": gain.clipped}
        means = {"actor/ppo_kl": -d, "actor/ratio_mean": ratio, "actor/pg_clipfrac": gain.clipped}
        for part in self.penalties:
            value, mask = self._penalty(part, batch, d, logprobs)
            term = (scale * value if mask is None else torch.where(mask, scale * value, 0.0)).sum()
            loss = loss + part.coefficient * term
            totals["actor/kl_loss"] = term
            tokens["kl"] = value.detach()
            if mask is not None:
                tokens["kl_mask"] = means["actor/kl_tokens"] = mask
        share = batch.lengths.sum() / plan.totals[0].clamp(min=1)
        present = {name: value for name, value in means.items() if value is not None}
        return Loss(loss, token_metrics(present, totals, {"actor/ratio_max": ratio}, share), {name: value for name, value in tokens.items() if value is not None})

    def _penalty(self, part: penalty_axis.Penalty, batch: TokenBatch, d: Tensor, logprobs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Value of a penalty at each token and where it acts (None: everywhere)."""
        if part.estimator == "full":
            value = batch.want("full_kl", "penalty.estimator: full")
        else:
            delta = d
            if part.anchor == "initial":
                delta = ratio_axis.log_ratio(logprobs, ratio_axis.finite_logprobs(batch.want("initial_logprobs", "penalty.anchor: initial")))
            value = penalty_axis.kl_estimate(part.estimator, delta, d.exp() if part.estimator == "r_k3" else None)
        if part.tokens == "all":
            return value, None
        change = penalty_axis.measured_change(batch)
        return value, penalty_axis.changed_tokens(part.tokens, change, batch.advantages, part.tolerance)
