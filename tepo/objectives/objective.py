"""An objective is one choice on each axis. It is called in three steps:

advantages = objective.advantages(groups)          # once per rollout
plan = objective.prepare(batch, comm)              # once per mini-batch: denominators and selections, over all ranks
out = objective.loss(micro_batch, plan.select(i))  # each micro-batch: losses (and gradients) add up, over ranks too
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tepo.objectives import advantage as advantage_axis
from tepo.objectives import aggregation as aggregation_axis
from tepo.objectives import correction as correction_axis
from tepo.objectives import overlong as overlong_axis
from tepo.objectives import penalty as penalty_axis
from tepo.objectives import ratio as ratio_axis
from tepo.objectives import surrogate as surrogate_axis
from tepo.objectives import weight as weight_axis
from tepo.objectives.batch import Comm, Groups, TokenBatch, all_sum
from tepo.objectives.metric_sums import Metrics, token_metrics
from tepo.objectives.segments import places_of, token_places, total


@dataclass(frozen=True)
class Needs:
    """What the trainer has to compute for a row."""

    entropy_gradient: bool = False
    entropies: bool = False
    old_entropies: bool = False
    initial_logprobs: bool = False
    sampler_logprobs: bool = False
    full_kl: bool = False
    full_kl_anchor: str = "old"  # whose distributions `full_kl` is against: old | initial
    prepass: bool = False  # `prepare` wants the current log-probs (and entropies) of the whole mini-batch


WATCHED = ("entropies", "old_entropies", "initial_logprobs", "sampler_logprobs", "full_kl")  # in Needs and TokenBatch


@dataclass(frozen=True)
class Plan:
    """Denominators and selections of a mini-batch:
    detached tensors for each of its tokens, and totals over all ranks."""

    lengths: Tensor
    totals: Tensor  # float64 [2]: tokens and non-empty sequences in the loss
    tokens: dict[str, Tensor]
    salt: int

    @cached_property
    def counts(self) -> list[int]:
        """`lengths` on the host, read once."""
        return self.lengths.tolist()

    def select(self, sequences: Any) -> "Plan":
        """The plan of the given sequences, as `TokenBatch.select`."""
        chosen, places = places_of(self.lengths, self.counts, sequences)
        return Plan(
            self.lengths[chosen], self.totals, {name: value[places] for name, value in self.tokens.items()}, self.salt
        )


@dataclass(frozen=True)
class Loss:
    """loss: scalar with a graph, divided by the mini-batch's denominators.

    tokens: named per-token diagnostics [N], detached.
    """

    loss: Tensor
    metrics: Metrics
    tokens: dict[str, Tensor]


class _Terms(NamedTuple):
    """What every step starts from, per token [N]."""

    logprobs: Tensor  # finite
    d: Tensor  # log-ratio to the old policy
    ratio: Tensor | None
    advantages: Tensor
    gain: surrogate_axis.Gain


@dataclass(frozen=True)
class Objective:
    """A composition; see `load_objective`."""

    name: str
    advantage: advantage_axis.Advantage
    ratio: ratio_axis.Ratio
    surrogate: surrogate_axis.Surrogate
    aggregation: aggregation_axis.Aggregation
    penalties: tuple[penalty_axis.Penalty, ...] = ()
    weight: weight_axis.Weight = field(default_factory=weight_axis.Uniform)
    correction: correction_axis.Correction = field(default_factory=correction_axis.NoCorrection)
    overlong: overlong_axis.Overlong = field(default_factory=overlong_axis.Keep)

    @cached_property
    def needs(self) -> Needs:
        """What the trainer has to compute."""
        kls = [part for part in self.penalties if isinstance(part, penalty_axis.Kl)]
        changes = {part.entropy_change for part in kls if part.tokens in penalty_axis.BY_CHANGE}
        bonus = len(kls) < len(self.penalties)
        entropy_reward = isinstance(
            self.advantage, advantage_axis.Gtpo | advantage_axis.GtpoClipped | advantage_axis.GrpoS
        )
        full = [part.anchor for part in kls if part.estimator == "full"]
        return Needs(
            entropy_gradient=bonus,
            entropies=bonus or "measured" in changes or isinstance(self.advantage, advantage_axis.EntropyTerm),
            old_entropies=bool(changes & {"measured", "omega"})
            or isinstance(self.weight, weight_axis.Steer)
            or entropy_reward,
            initial_logprobs=any(part.anchor == "initial" and part.estimator != "full" for part in kls),
            sampler_logprobs=isinstance(self.correction, correction_axis.Truncated),
            full_kl=bool(full),
            full_kl_anchor=full[0] if full else "old",
            prepass=any(scope == "mini_batch" for scope in self._scopes()),
        )

    def advantages(self, groups: Groups, comm: Comm | None = None) -> Tensor:
        """Per-token advantages [N] of a rollout, detached;
        `comm` for the kinds with statistics over the whole rollout."""
        with torch.no_grad():
            return advantage_axis.advantages(self.advantage, self.overlong, groups, comm)

    def prepare(self, batch: TokenBatch, comm: Comm | None = None, salt: int = 0) -> Plan:
        """Denominators and selections over the whole mini-batch and all ranks;
        `salt` (from seed, step …) varies random draws."""
        with torch.no_grad():
            kept = overlong_axis.kept_sequences(self.overlong, batch)
            own = batch if kept is None else batch.select(kept)
            totals = aggregation_axis.count(own, comm)
            tokens = self._selections(own, "mini_batch", comm, salt)
            if self.aggregation.over != "micro_batch":
                tokens["scale"] = aggregation_axis.token_scale(self.aggregation, own, totals, comm)
            return Plan(batch.lengths, totals, tokens if kept is None else _spread(tokens, batch, kept), salt)

    def loss(self, batch: TokenBatch, plan: Plan) -> Loss:
        """The loss of a (micro-)batch with its part of the plan."""
        terms, chosen = self._terms(batch), self._local_plan(batch, plan)
        value = terms.gain.value
        if "weight" in chosen:
            value = value * chosen["weight"]
        if isinstance(self.correction, correction_axis.Truncated):
            value = value * correction_axis.correction_weights(self.correction, batch)
        policy = -total(chosen["scale"] * value)
        totals, tokens = {"actor/pg_loss": policy}, self._diagnostics(terms, chosen, batch)
        loss = policy
        for place, part in enumerate(self.penalties):
            term, name = self._penalty(place, part, terms, chosen, batch, tokens)
            raised = isinstance(part, penalty_axis.EntropyBonus)
            loss = loss - part.coefficient * term if raised else loss + part.coefficient * term
            totals[name] = totals[name] + term if name in totals else term
        return Loss(loss * self._intact(batch), self._metrics(terms, tokens, totals, chosen, batch, plan), tokens)

    def _intact(self, batch: TokenBatch) -> Tensor | float:
        """1, or NaN where a tensor that the row wants holds a NaN, which masks and comparisons would hide."""
        needs = self.needs
        wanted = (getattr(batch, name) for name in WATCHED if getattr(needs, name))
        sums = [value.detach().sum() for value in wanted if value is not None]
        if not sums:
            return 1.0
        return torch.where(torch.stack(sums).isnan().any(), torch.nan, 1.0)

    def _terms(self, batch: TokenBatch) -> _Terms:
        logprobs = ratio_axis.finite_logprobs(
            batch.want("logprobs", "Objective.loss, or Objective.prepare with needs.prepass")
        )
        d = ratio_axis.log_ratio(logprobs, ratio_axis.finite_logprobs(batch.old_logprobs))
        ratio = ratio_axis.importance_ratio(self.ratio, d, batch)
        advantages = batch.advantages
        if isinstance(self.advantage, advantage_axis.EntropyTerm):
            advantages = advantage_axis.entropy_term(
                self.advantage, advantages, batch.want("entropies", "advantage.kind: entropy_term")
            )
        return _Terms(
            logprobs, d, ratio, advantages, surrogate_axis.gain(self.surrogate, ratio, d, logprobs, advantages, batch)
        )

    def _scopes(self) -> list[str]:
        """Where each selection of tokens is made."""
        scopes = [
            part.scope for part in self.penalties if isinstance(part, penalty_axis.Kl) and penalty_axis.is_global(part)
        ]
        return scopes + ([] if isinstance(self.weight, weight_axis.Uniform) else [self.weight.scope])

    def _selections(self, batch: TokenBatch, scope: str, comm: Comm | None, salt: int) -> dict[str, Tensor]:
        """Weights and masks that look at the whole of `batch`, by name."""
        if scope not in self._scopes():
            return {}
        found: dict[str, Tensor] = {}
        terms = self._terms(batch)
        if not isinstance(self.weight, weight_axis.Uniform) and self.weight.scope == scope:
            found["weight"] = weight_axis.token_weights(
                self.weight, batch, terms.logprobs, terms.gain.clipped, comm, salt
            )
        for place, part in enumerate(self.penalties):
            if isinstance(part, penalty_axis.Kl) and penalty_axis.is_global(part) and part.scope == scope:
                mask = penalty_axis.mask(part, terms.logprobs, batch, comm, salt)
                assert mask is not None
                found[f"mask_{place}"] = mask
                if part.mean_over == "masked":
                    found[f"scale_{place}"] = mask.to(batch.advantages.dtype) / all_sum(mask.sum(), comm).clamp(min=1)
        return found

    def _local_plan(self, batch: TokenBatch, plan: Plan) -> dict[str, Tensor]:
        """The plan's tensors, completed by those that are defined on a micro-batch alone
        (`scope` and `over: micro_batch`)."""
        whole = self.aggregation.over != "micro_batch"
        if whole and "micro_batch" not in self._scopes():
            return plan.tokens
        with torch.no_grad():
            kept = overlong_axis.kept_sequences(self.overlong, batch)
            own = batch if kept is None else batch.select(kept)
            tokens = self._selections(own, "micro_batch", None, plan.salt)
            if not whole:
                tokens["scale"] = aggregation_axis.micro_batch_scale(self.aggregation, own, plan.totals)
            return plan.tokens | (tokens if kept is None else _spread(tokens, batch, kept))

    def _penalty(
        self,
        place: int,
        part: penalty_axis.Penalty,
        terms: _Terms,
        chosen: dict[str, Tensor],
        batch: TokenBatch,
        tokens: dict[str, Tensor],
    ) -> tuple[Tensor, str]:
        """A penalty's sum and its metric's name; adds its diagnostics to `tokens`."""
        scale = chosen.get(f"scale_{place}", chosen["scale"])
        if isinstance(part, penalty_axis.EntropyBonus):
            return total(scale * batch.want("entropies", "penalty.kind: entropy")), "actor/entropy_loss"
        values = penalty_axis.kl_values(part, terms.d, terms.logprobs, batch)
        mask = chosen.get(f"mask_{place}")
        if mask is None:
            mask = penalty_axis.mask(part, terms.logprobs, batch, None, 0)
        tokens["kl"] = values.detach()
        if mask is not None:
            tokens["kl_mask"] = mask
        return total(scale * values if mask is None else torch.where(mask, scale * values, 0.0)), "actor/kl_loss"

    def _diagnostics(self, terms: _Terms, chosen: dict[str, Tensor], batch: TokenBatch) -> dict[str, Tensor]:
        """Named per-token values, detached."""
        found = {
            "log_ratio": terms.d,
            "ratio": terms.ratio,
            "advantage": terms.advantages,
            "clipped": terms.gain.clipped,
            "clipped_lower": terms.gain.clipped_lower,
        }
        found["weight"] = chosen.get("weight")
        if batch.entropies is not None and batch.old_entropies is not None:
            found["entropy_change"] = batch.entropies.detach() - batch.old_entropies
        return {name: value.detach() for name, value in found.items() if value is not None}

    def _metrics(
        self,
        terms: _Terms,
        tokens: dict[str, Tensor],
        totals: dict[str, Tensor],
        chosen: dict[str, Tensor],
        batch: TokenBatch,
        plan: Plan,
    ) -> Metrics:
        kls = [part for part in self.penalties if isinstance(part, penalty_axis.Kl)]
        by_size = any(part.tokens == "top_covariance" for part in kls)  # verl's KL-Cov reports |d|
        named = {
            "actor/ppo_kl": tokens["log_ratio"].abs() if by_size else -tokens["log_ratio"],
            "actor/entropy": batch.entropies,
            "actor/entropy_change": tokens.get("entropy_change"),
            **self._clipped(tokens),
            "actor/ratio_mean": tokens.get("ratio"),
            "actor/token_weight": tokens.get("weight"),
            "actor/kl_tokens": tokens.get("kl_mask"),
        }
        counted = chosen["scale"] > 0 if isinstance(self.overlong, overlong_axis.Filter) else None
        maxima = {"actor/ratio_max": tokens["ratio"]} if "ratio" in tokens else {}
        return token_metrics(
            {name: value for name, value in named.items() if value is not None}, totals, maxima, counted, plan.totals[0]
        )

    def _clipped(self, tokens: dict[str, Tensor]) -> dict[str, Tensor | None]:
        """verl's clip fractions, which for Clip-Cov and GMPO are not the tokens that the clip acts on."""
        acts = tokens.get("clipped")
        if isinstance(self.weight, weight_axis.ClipCov):
            return {"actor/pg_clipfrac": tokens["weight"] == 0, "actor/clipped_tokens": acts}
        if isinstance(self.surrogate, surrogate_axis.GeometricClip):
            d, advantages = tokens["log_ratio"], tokens["advantage"]
            outside = (d > self.surrogate.high) | (d < -self.surrogate.low)
            upper, lower = outside & (advantages > 0), outside & (advantages < 0)
            return {"actor/pg_clipfrac": upper, "actor/pg_clipfrac_lower": lower, "actor/clipped_tokens": acts}
        return {"actor/pg_clipfrac": acts, "actor/pg_clipfrac_lower": tokens.get("clipped_lower")}


def _spread(tokens: dict[str, Tensor], batch: TokenBatch, kept: Tensor) -> dict[str, Tensor]:
    """Per-token tensors of the kept sequences, as tensors of the whole batch with 0 on the others."""
    places = token_places(batch.lengths, kept)
    return {
        name: value.new_zeros(batch.advantages.shape[0]).index_copy(0, places, value.contiguous())
        for name, value in tokens.items()
    }
