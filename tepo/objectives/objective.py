"""An objective is one choice on each axis. It is called in three steps:

advantages = objective.advantages(groups)          # once per rollout
plan = objective.prepare(batch, comm)              # once per mini-batch: denominators and selections, over all ranks
out = objective.loss(micro_batch, plan.select(i))  # each micro-batch: losses (and gradients) add up, over ranks too"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.objectives.axes.advantage import Advantage
from tepo.objectives.axes.aggregation import Aggregation, count, micro_batch_scale, token_scale
from tepo.objectives.axes.correction import Correction, NoCorrection
from tepo.objectives.axes.importance_ratio import Ratio, Sequence, Token
from tepo.objectives.axes.overlong import Keep, Overlong
from tepo.objectives.axes.penalty import Penalty, Selection
from tepo.objectives.axes.surrogate import Cispo, GeometricClip, PaperClip, PpoClip, Surrogate
from tepo.objectives.axes.trust_region import HardClip
from tepo.objectives.axes.weight import Uniform, Weight
from tepo.objectives.axis import Needing, Needs, all_needs
from tepo.objectives.batch import Comm, Groups, TokenBatch
from tepo.objectives.inputs import check_has, check_lengths, numbers_of
from tepo.objectives.metric_sums import Metrics, token_metrics
from tepo.objectives.segments import indices_of, token_indices, total
from tepo.objectives.terms import Gain, Terms, finite_logprobs, log_ratio


@dataclass(frozen=True)
class Clip:
    """of: whose log-ratio is bounded, each token's or the geometric mean of a response. bounds: the clip distances that
    act, by side (`low`, `high`)."""

    of: Literal["token", "sequence"]
    bounds: dict[str, float]


def clip_of(surrogate: Surrogate, ratio: Ratio) -> Clip | None:
    """None where there is no clip, or where it bounds another log-ratio (an arithmetic mean, a product, a prefix, or
    one to the sampler)."""
    match surrogate:
        case PpoClip() | GeometricClip() | HardClip():
            bounds = {"low": surrogate.low, "high": surrogate.high}
        case Cispo():
            bounds = {"high": surrogate.high} | ({} if surrogate.low is None else {"low": surrogate.low})
        case PaperClip():  # its lower bound never acts
            bounds = {"high": surrogate.high}
        case _:
            return None
    match ratio:
        case Token():
            return Clip("token", bounds)
        case Sequence(mean="geometric", to="old"):
            return Clip("token" if isinstance(surrogate, GeometricClip) else "sequence", bounds)
        case _:
            return None


_OF_GROUPS = ("old_entropies", "finished", "max_new_tokens")  # what advantages may read, and length punishments
_OF_PLAN = ("uid", "group_ids", "finished", "max_new_tokens")  # what `prepare` reads beside log-probs
LOGPROBS = ("logprobs", "old_logprobs", "initial_logprobs", "sampler_logprobs")
WATCHED = (*LOGPROBS, "entropies", "old_entropies", "full_kl")


@dataclass(frozen=True)
class Plan:
    """Denominators and selections for sequences with these `lengths` [S] and their N tokens, detached.

    totals: tokens and non-empty sequences in the loss, over all ranks, float64 [2]. salt: varies random draws. scale:
    weight of each token in the sums [N]; weight: of the weight axis [N], None where all are 1; correction: of the
    correction axis [N], the same. filtered: whether sequences were left out. penalties: what each of the row's
    penalties selects. None also stands for what each micro-batch makes by itself."""

    lengths: Tensor
    totals: Tensor
    salt: int
    filtered: bool = False
    scale: Tensor | None = None
    weight: Tensor | None = None
    correction: Tensor | None = None
    penalties: tuple[Selection | None, ...] = ()

    @cached_property
    def counts(self) -> list[int]:
        """`lengths` on the host, read once."""
        return self.lengths.tolist()

    def select(self, sequences: Any) -> "Plan":
        """The plan of the given sequences, as `TokenBatch.select`."""
        chosen, indices = indices_of(self.lengths, self.counts, numbers_of(sequences, len(self.counts), self))
        return self._each(self.lengths[chosen], lambda value: value[indices])

    def spread(self, batch: TokenBatch, kept: Tensor) -> "Plan":
        """The plan of a batch whose sequences `kept` are this plan's; 0 on the tokens of the others."""
        indices, size = token_indices(batch.lengths, kept), batch.advantages.shape[0]
        return self._each(batch.lengths, lambda value: value.new_zeros(size).index_copy(0, indices, value.contiguous()))

    def _each(self, lengths: Tensor, change: Callable[[Tensor], Tensor]) -> "Plan":

        def changed(value: Tensor | None) -> Tensor | None:
            return None if value is None else change(value)

        penalties = tuple(part and Selection(change(part.mask), changed(part.scale)) for part in self.penalties)
        scale, weight, correction = (changed(value) for value in (self.scale, self.weight, self.correction))
        return replace(self, lengths=lengths, scale=scale, weight=weight, correction=correction, penalties=penalties)


@dataclass(frozen=True)
class Loss:
    """loss: scalar with a graph, divided by the mini-batch's denominators. tokens: named per-token diagnostics [N],
    detached."""

    loss: Tensor
    metrics: Metrics
    tokens: dict[str, Tensor]


@dataclass(frozen=True)
class Objective:
    """A composition; see `load_objective`. files: name and text of the Python files that define kinds of it."""

    name: str
    advantage: Advantage
    ratio: Ratio
    surrogate: Surrogate
    aggregation: Aggregation
    penalties: tuple[Penalty, ...] = ()
    weight: Weight = field(default_factory=Uniform)
    correction: Correction = field(default_factory=NoCorrection)
    overlong: Overlong = field(default_factory=Keep)
    files: tuple[tuple[str, str], ...] = ()

    @cached_property
    def needs(self) -> Needs:
        """All that the row reads, and whether `prepare` reads log-probs."""
        return all_needs((self.overlong, self.advantage, *self._in_loss), prepass="mini_batch" in self._scopes)

    @property
    def _in_loss(self) -> tuple[Needing, ...]:
        """The kinds that read the batch alone."""
        return (self.ratio, self.surrogate, self.weight, self.correction, self.aggregation, *self.penalties)

    @cached_property
    def _of_groups(self) -> list[str]:
        """Fields of `Groups` that are read: by advantages, and by a punishment of long responses."""
        given = {*self.advantage.needs.given, *self.overlong.needs.given} - self._filtered_by
        return [name for name in _OF_GROUPS if name in given]

    @cached_property
    def _of_batch(self) -> list[str]:
        """Fields of `TokenBatch` that are read: all that are not read of `Groups`, and those that both are read for."""
        shared = {name for kind in self._in_loss for name in kind.needs.given} | self._filtered_by
        return [name for name in self.needs.given if name in shared or name not in self._of_groups]

    @property
    def _filtered_by(self) -> set[str]:
        """Names of the inputs that decide which responses stay in the loss."""
        return {"finished"} & set(self.overlong.needs.given)

    @property
    def clip(self) -> Clip | None:
        """The clip of the surrogate, None without one."""
        return clip_of(self.surrogate, self.ratio)

    @cached_property
    def _scopes(self) -> set[str | None]:
        """Sets of tokens (mini-batch, sequence …) within which tokens are selected."""
        return {self.weight.scope, *(part.selects for part in self.penalties)}

    def advantages(self, groups: Groups, comm: Comm | None = None) -> Tensor:
        """Per-token advantages [N] of a rollout, detached, in the dtype of the rewards (float32 at least);
        `comm` for the kinds with statistics over the whole rollout."""
        check_has(groups, self._of_groups, self._reader)
        check_lengths(groups, groups.counts, "" if groups.old_entropies is None else "old_entropies")
        with torch.no_grad():
            made = self.advantage.advantages(self.overlong.shaped_rewards(groups), groups, comm)
            return made.to(groups.rewards.dtype)

    def prepare(self, batch: TokenBatch, comm: Comm | None = None, salt: int = 0) -> Plan:
        """Denominators and selections over the whole mini-batch and all ranks;
        `salt` (from seed, step …) varies random draws."""
        wanted = [name for name in self._of_batch if name in _OF_PLAN]
        check_has(batch, [*wanted, *(["logprobs"] if self.needs.prepass else [])], self._reader)
        check_lengths(batch, batch.counts, "advantages")
        with torch.no_grad():
            kept = self.overlong.kept_sequences(batch)
            own = batch if kept is None else batch.select(kept)
            totals = count(own, comm)
            alone = self.aggregation.over == "micro_batch"
            scale = None if alone else token_scale(self.aggregation, own, totals, comm)
            nothing = (None,) * len(self.penalties)
            correction = self.correction.weights(own, comm)
            plan = Plan(own.lengths, totals, salt, kept is not None, scale, correction=correction, penalties=nothing)
            plan = self._with_selections(plan, own, "mini_batch", comm)
            return plan if kept is None else plan.spread(batch, kept)

    def loss(self, batch: TokenBatch, plan: Plan) -> Loss:
        """The loss of a (micro-)batch with its part of the plan."""
        check_has(batch, ["logprobs", *self._of_batch], self._reader)
        if plan.lengths.shape != batch.lengths.shape:
            what = f"the plan is of {plan.lengths.shape[0]} responses and the batch of {batch.lengths.shape[0]}"
            raise UserError(what, where=self._reader, fix="select both alike: batch.select(part), plan.select(part)")
        if plan.lengths.device != batch.lengths.device:
            what = f"the plan is on {plan.lengths.device} and the batch on {batch.lengths.device}"
            raise UserError(what, where=self._reader, fix="prepare and loss on one device")
        terms = self._terms(batch)
        gain = self.surrogate.gain(terms)
        plan = self._completed(plan, batch)
        assert plan.scale is not None
        value = gain.value if plan.weight is None else gain.value * plan.weight
        policy = -total(plan.scale * (value if plan.correction is None else value * plan.correction))
        change = None
        if batch.entropies is not None and batch.old_entropies is not None:
            change = batch.entropies.detach() - batch.old_entropies
        named = {
            "log_ratio": terms.d,
            "ratio": terms.importance,
            "advantage": terms.advantages,
            "clipped": gain.clipped,
            "clipped_lower": gain.clipped_lower,
            "weight": plan.weight,
            "correction": plan.correction,
            "entropy_change": change,
        }
        tokens = {name: value.detach() for name, value in named.items() if value is not None}
        loss, totals = policy, {"actor/pg_loss": policy}
        for part, chosen in zip(self.penalties, plan.penalties, strict=True):
            term = part.term(terms, chosen, plan.scale)
            loss = loss + part.in_loss * term.total
            totals[term.metric] = totals[term.metric] + term.total if term.metric in totals else term.total
            tokens |= term.tokens
        return Loss(loss * self._intact(batch), self._metrics(batch, plan, gain, tokens, totals), tokens)

    @property
    def _reader(self) -> str:
        return f"the objective {self.name}"

    def _intact(self, batch: TokenBatch) -> Tensor:
        """1, or NaN where log-probs, or another tensor that the row wants, hold a NaN, a log-prob of +inf or an
        infinite entropy, which masks, clips and comparisons would hide. Waits for no device."""
        sums = []
        for name in WATCHED:
            value = getattr(batch, name)
            if value is not None and getattr(self.needs, name, True):
                summed = value.detach().sum()
                if name != "full_kl":  # which may be infinite, off the anchor's support
                    size = summed if name in LOGPROBS else summed.abs()  # a log-prob may be -inf
                    summed = torch.where(size == torch.inf, torch.nan, summed)
                sums.append(summed)
        return torch.where(torch.stack(sums).isnan().any(), torch.nan, 1.0)

    def _terms(self, batch: TokenBatch) -> Terms:
        logprobs = finite_logprobs(batch.want("logprobs", "Objective.loss, or Objective.prepare with needs.prepass"))
        d = log_ratio(logprobs, finite_logprobs(batch.old_logprobs))
        ratio = self.ratio.importance_ratio(d, batch)
        return Terms(batch, logprobs, d, ratio, self.advantage.current(batch.advantages, batch))

    def _with_selections(self, plan: Plan, batch: TokenBatch, scope: str, comm: Comm | None) -> Plan:
        """The plan with the weights and masks that look at all of `batch`."""
        if scope not in self._scopes:
            return plan
        terms, weight = self._terms(batch), plan.weight
        if self.weight.scope == scope:
            weight = self.weight.token_weights(terms, self.surrogate.gain(terms).clipped, comm, plan.salt)
        penalties = [
            part.select(terms, comm, plan.salt) if part.selects == scope else chosen
            for part, chosen in zip(self.penalties, plan.penalties, strict=True)
        ]
        return replace(plan, weight=weight, penalties=tuple(penalties))

    def _completed(self, plan: Plan, batch: TokenBatch) -> Plan:
        """The plan with what is defined on a micro-batch alone (`scope` and `over: micro_batch`)."""
        alone = self.aggregation.over == "micro_batch"
        if not alone and "micro_batch" not in self._scopes:
            return plan
        with torch.no_grad():
            kept = self.overlong.kept_sequences(batch)
            own, mine = (batch, plan) if kept is None else (batch.select(kept), plan.select(kept))
            mine = self._with_selections(mine, own, "micro_batch", None)
            if alone:
                mine = replace(mine, scale=micro_batch_scale(self.aggregation, own, plan.totals))
            return mine if kept is None else mine.spread(batch, kept)

    def _metrics(
        self, batch: TokenBatch, plan: Plan, gain: Gain, tokens: dict[str, Tensor], totals: dict[str, Tensor]
    ) -> Metrics:
        clips = {"actor/pg_clipfrac": gain.clipped, "actor/pg_clipfrac_lower": gain.clipped_lower}
        # verl's clip fractions are not always the tokens that the clip acts on
        if self.weight.drops and plan.weight is not None:
            clips = {"actor/pg_clipfrac": plan.weight == 0, "actor/clipped_tokens": gain.clipped}
        elif gain.counted is not None:
            upper, lower = gain.counted
            clips = {"actor/pg_clipfrac": upper, "actor/pg_clipfrac_lower": lower, "actor/clipped_tokens": gain.clipped}
        by_size = any(part.reports_size for part in self.penalties)  # verl's KL-Cov reports |d|
        named = {
            "actor/ppo_kl": tokens["log_ratio"].abs() if by_size else -tokens["log_ratio"],
            "actor/entropy": batch.entropies,
            "actor/entropy_change": tokens.get("entropy_change"),
            **clips,
            "actor/ratio_mean": tokens.get("ratio"),
            "actor/token_weight": tokens.get("weight"),
            "actor/correction_weight": plan.correction,
            "actor/correction_dropped": None if plan.correction is None else plan.correction == 0,
            "actor/kl_tokens": tokens.get("kl_mask"),
        }
        means = {name: value for name, value in named.items() if value is not None}
        maxima = {"actor/ratio_max": tokens["ratio"]} if "ratio" in tokens else {}
        counted = plan.scale > 0 if plan.scale is not None and plan.filtered else None
        return token_metrics(means, totals, maxima, counted, plan.totals[0])
