"""An objective: a formula at work. Advantages once a rollout, a plan once a mini-batch, a loss each micro-batch.

advantages = objective.advantages(groups)          # what the loss reads of the rollout
plan = objective.prepare(batch, comm)              # denominators and every `_b` value, over all ranks
out = objective.loss(micro_batch, plan.select(i))  # losses (and gradients) add up, over ranks too"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.formula.addends import Clip
from tepo.formula.formula import Formula
from tepo.formula.graph import Node, below
from tepo.formula.language import GIVEN
from tepo.objectives.batch import PER_TOKEN, Collectives, Flat, Groups, TokenBatch, all_sum, gather, largest
from tepo.objectives.functions import compute, reduced
from tepo.objectives.scope import Scope, Value


@dataclass(frozen=True)
class Plan(Flat):
    """Denominators and `_b` values of the sequences of a mini-batch or of a part of it, detached."""

    lengths: Tensor  # of the sequences, int64 [S]
    totals: Tensor  # tokens and non-empty sequences in the loss over all ranks, float64 [2]
    scale: Tensor  # weight of each token in the sum [N]
    values: Mapping[int, Tensor]  # by the number of the node, a number or [N]
    filtered: bool  # sequences were left out

    def select(self, sequences: Any) -> "Plan":
        """The plan of the given sequences, as `TokenBatch.select`."""
        chosen, indices = self.places(sequences)
        return self._each(self.lengths[chosen], lambda value: value[indices])

    def spread(self, batch: TokenBatch, kept: Tensor) -> "Plan":
        """The plan of a batch whose sequences `kept` are this plan's; 0 on the tokens of the others."""
        (_, indices), size = batch.places(kept), batch.tokens
        return self._each(batch.lengths, lambda value: value.new_zeros(size).index_copy(0, indices, value.contiguous()))

    def _each(self, lengths: Tensor, change: Callable[[Tensor], Tensor]) -> "Plan":
        values = {number: change(value) if value.dim() else value for number, value in self.values.items()}
        return replace(self, lengths=lengths, scale=change(self.scale), values=values)


@dataclass(frozen=True)
class Metrics:
    """Sums with their denominators under verl's names (float64 [K] each), and maxima, on the device until someone asks
    for the means. Add those of micro-batches and mini-batches with `+`; a mean over tokens is then over all of them,
    `actor/pg_loss` and other totals are means over mini-batches."""

    names: tuple[str, ...]
    sums: Tensor
    counts: Tensor
    maxima: dict[str, Tensor]

    def __add__(self, other: "Metrics") -> "Metrics":
        assert self.names == other.names, "metrics of different objectives do not add"
        maxima = {name: torch.maximum(value, other.maxima[name]) for name, value in self.maxima.items()}
        return Metrics(self.names, self.sums + other.sums, self.counts + other.counts, maxima)

    def items(self) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
        """(name, (sum, denominator)) of every mean."""
        return ((name, (self.sums[index], self.counts[index])) for index, name in enumerate(self.names))

    def means(self, comm: Collectives | None = None) -> dict[str, float]:
        """Plain numbers over all ranks; a maximum over no token is left out. The only place that waits for the
        device."""
        sums, counts, maxima = all_sum(self.sums, comm), all_sum(self.counts, comm), self.maxima
        if comm is not None:
            maxima = {name: largest(value.reshape(1), comm) for name, value in maxima.items()}
        means = dict(zip(self.names, (sums / counts.clamp(min=1e-12)).tolist(), strict=True))
        tops = ((name, float(value)) for name, value in maxima.items())
        return means | {name: value for name, value in tops if value != -math.inf}


@dataclass(frozen=True)
class Loss:
    """Loss of a (micro-)batch: its part of that of the mini-batch."""

    loss: Tensor  # a scalar with a graph, divided by the mini-batch's denominators
    metrics: Metrics
    tokens: dict[str, Tensor]  # named diagnostics of each token [N], detached


class Objective(Formula):
    """A formula that takes tensors."""

    def advantages(self, groups: Groups, comm: Collectives | None = None) -> Tensor:
        """The value that the loss reads of the rollout, one per token [N], detached, in the dtype of the rewards.
        `comm` is for statistics over the whole rollout."""
        groups.check_has(sorted(self.inputs["rollout"]), self._reader)
        scope = Scope(groups, torch.float64, comm)
        with torch.no_grad():
            value = scope.typed(self._values([self.handed], scope)[self.handed.number], self.handed.per)
            per_token = scope.number(scope.lift(value, self.handed.per, "token"), "token").expand(groups.tokens)
            index, number = scope.groups(groups.rewards)
            spoilt = reduced(0 * groups.rewards.double(), index, number)  # NaN where a reward of the group is
            if "old_entropies" in self.inputs["rollout"]:
                entropies = 0 * groups.old_entropies.double()  # type: ignore[union-attr]
                spoilt = spoilt + reduced(entropies, index[groups.sequence], number)
            return (per_token + spoilt[index][groups.sequence]).to(groups.rewards.dtype)

    def prepare(
        self, batch: TokenBatch, comm: Collectives | None = None, salt: int = 0, totals: Tensor | None = None
    ) -> Plan:
        """Denominators and `_b` values over the whole mini-batch and all ranks. `salt` (from seed, step …) varies
        random draws. totals: as in the plan, where a trainer knows them and the batch is a part of its mini-batch."""
        current = ["logprobs"] if self.needs.prepass else []
        batch.check_has([*current, *sorted(self.inputs["plan"])], self._reader)
        _ = batch.counts  # checked, on a device too
        with torch.no_grad():
            survivors = torch.nonzero(batch.finished)[:, 0] if batch.finished is not None and self.keep else None
            counted = batch if survivors is None else batch.select(survivors)
            if totals is None:
                totals = all_sum(torch.stack([counted.lengths.sum(), (counted.lengths > 0).sum()]).double(), comm)
            scope = Scope(counted, batch.advantages.dtype, comm, salt, totals)
            values = self._values(self.planned, scope)
            planned = {node.number: values[node.number] for node in self.planned}
            plan = Plan(counted.lengths, totals, self._scale(counted, totals, comm), planned, survivors is not None)
            return plan if survivors is None else plan.spread(batch, survivors)

    def loss(self, batch: TokenBatch, plan: Plan, weights: Tensor | None = None) -> Loss:
        """The loss of a (micro-)batch with its part of the plan. weights: of the policy term, beside what the formula
        says [N]."""
        batch.check_has(["logprobs", *sorted(self.inputs["loss"])], self._reader)
        if plan.lengths.shape != batch.lengths.shape:
            what = f"the plan is of {plan.lengths.shape[0]} responses and the batch of {batch.lengths.shape[0]}"
            raise UserError(what, where=self._reader, fix="select both alike: batch.select(part), plan.select(part)")
        if plan.lengths.device != batch.lengths.device:
            what = f"the plan is on {plan.lengths.device} and the batch on {batch.lengths.device}"
            raise UserError(what, where=self._reader, fix="prepare and loss on one device")
        outputs = {name: getattr(batch, name) for name in self._outputs}
        leaves = {name: value.detach().requires_grad_() for name, value in outputs.items()}
        dtype, values = batch.advantages.dtype, dict[int, Value](plan.values)
        counted = plan.scale > 0 if plan.filtered else None
        scope = Scope(batch, dtype, totals=plan.totals, counted=counted, leaves=leaves)
        with torch.enable_grad():
            for node, spent in self._loss_steps:
                if node.number not in values:
                    with torch.set_grad_enabled(node.gradient):
                        values[node.number] = self._value(node, scope, values)
                for number in spent:
                    values.pop(number, None)
            parts = [self._per_token(addend.node, scope, values) for addend in self._addends]
            if counted is not None:  # what was cut may be infinite, as divided by the sum of an empty group
                parts = [torch.where(counted, part, 0) for part in parts]
            if weights is not None:
                parts[0] = weights.detach() * parts[0]
            totals = [(plan.scale * part).sum(dtype=torch.float64).to(dtype) for part in parts]
            loss, named = -totals[0], {"actor/pg_loss": -totals[0].detach()}
            for addend, part in zip(self._addends[1:], totals[1:], strict=True):
                loss = loss - addend.coefficient * part
                earlier = named.get(addend.metric)
                named[addend.metric] = part.detach() if earlier is None else earlier + part.detach()
            loss = loss * self._nan_guard(batch)
        # The gradient in each output of the model is worked out here and fed to the model's own backward pass: metrics
        # read it, and the formula's graph goes with the micro-batch. Without a clip a token counts as clipped where the
        # policy term alone, without penalties, has no slope.
        apart = len(totals) > 1 and not self._clips
        with torch.no_grad():
            slopes = _slopes(loss, leaves.values(), again=apart)
            policy = _slopes(totals[0], leaves.values()) if apart else slopes
            if counted is not None:
                slopes = [torch.where(counted, slope, 0) for slope in slopes]
            tokens = self._tokens(batch, scope, values, policy)
            metrics = self._metrics(batch, plan, counted, tokens, named)
        return Loss(_Fed.apply(loss.detach(), len(slopes), *slopes, *outputs.values()), metrics, tokens)

    @cached_property
    def _outputs(self) -> list[str]:
        """Outputs of the model into which the gradient of J flows."""
        read = {GIVEN[name].field for name in self._with_gradient}
        return [name for name in PER_TOKEN if name in read]

    def _per_token(self, node: Node, scope: Scope, values: Mapping[int, Value]) -> Tensor:
        value = scope.number(values[node.number], node.per)
        return value if node.per else value.expand(scope.source.tokens)

    def _tokens(
        self, batch: TokenBatch, scope: Scope, values: Mapping[int, Value], slopes: list[Tensor]
    ) -> dict[str, Tensor]:
        """Diagnostics [N]. slopes: of the policy term in what the model gives."""
        line_values = {name: self._per_token(node, scope, values) for name, node in self._watched.items()}
        advantage = line_values.get("A", batch.advantages)
        if self._clips:
            clipped = reduce(torch.logical_or, [self._acts(clip, scope, values) for clip in self._clips])
        else:
            clipped = reduce(torch.logical_and, [slope == 0 for slope in slopes]) & (advantage != 0)
        named = {
            "log_ratio": scope.given("d"),
            "ratio": line_values.get("w"),
            "advantage": advantage,
            "clipped": clipped,
            "correction" if self._weight_corrects else "weight": line_values.get("v"),
            "kl": line_values.get("kl"),
            "kl_mask": line_values.get("M"),
        }
        if batch.entropies is not None and batch.old_entropies is not None:
            named["entropy_change"] = batch.entropies - batch.old_entropies
        return {name: value.detach() for name, value in named.items() if value is not None}

    @cached_property
    def _weight_corrects(self) -> bool:
        """True where the weight `v` corrects the gap between sampler and trainer."""
        weight = self._line("v")
        return weight is not None and any(node.value == "logp_sampler" for node in weight.below())

    def _acts(self, clip: Clip, scope: Scope, values: Mapping[int, Value]) -> Tensor:
        """Tokens where a clip holds its ratio, and the `min` around it takes what it holds [N]."""
        acts = self._per_token(clip.held, scope, values) != self._per_token(clip.of, scope, values)
        if clip.side is not None:
            side = self._per_token(clip.side, scope, values)
            for other in clip.others:
                acts = acts & (side < self._per_token(other, scope, values))
        return acts

    def _metrics(
        self,
        batch: TokenBatch,
        plan: Plan,
        counted: Tensor | None,
        tokens: Mapping[str, Tensor],
        totals: Mapping[str, Tensor],
    ) -> Metrics:
        correction = tokens.get("correction")
        named = {
            "actor/ppo_kl": -tokens["log_ratio"],
            "actor/entropy": batch.entropies,
            "actor/entropy_change": tokens.get("entropy_change"),
            "actor/pg_clipfrac": tokens["clipped"],
            "actor/ratio_mean": tokens.get("ratio"),
            "actor/token_weight": tokens.get("weight"),
            "actor/correction_weight": correction,
            "actor/correction_dropped": None if correction is None else correction == 0,
            "actor/kl_tokens": tokens.get("kl_mask"),
        }
        # Token means are over the tokens in the loss, totals are already divided by the mini-batch's denominators
        means = {name: value for name, value in named.items() if value is not None}
        size, values = plan.totals.new_full((), batch.tokens), list(means.values())
        ratio = tokens.get("ratio")
        if counted is not None:
            ratio = None if ratio is None else torch.where(counted, ratio, -torch.inf)
            size, values = counted.sum(), [torch.where(counted, value, 0) for value in values]
        sums = torch.stack([value.detach().sum(dtype=torch.float64) for value in values])
        share = (size / plan.totals[0].clamp(min=1)).double()
        counts = torch.cat([size.double().expand(len(means)), share.expand(len(totals))])
        maxima = {} if ratio is None else {"actor/ratio_max": largest(ratio, None)}
        return Metrics(
            (*means, *totals), torch.cat([sums, torch.stack(list(totals.values())).double()]), counts, maxima
        )

    # values -----------------------------------------------------------------------------------------------------------
    def _values(self, roots: Sequence[Node], scope: Scope) -> dict[int, Value]:
        """The values of nodes and of all that they are made of, by number."""
        values: dict[int, Value] = {}
        for node in below(roots):
            values[node.number] = self._value(node, scope, values)
        return values

    def _value(self, node: Node, scope: Scope, values: Mapping[int, Value]) -> Value:
        if node.op == "number":
            return node.value
        if node.op == "given":
            return scope.given(str(node.value))
        return compute(node, scope, [values[part.number] for part in node.args])

    def _scale(self, batch: TokenBatch, totals: Tensor, comm: Collectives | None) -> Tensor:
        """Weight of each token in the sum [N]."""
        if self._average is None:
            return _group_scale(batch, comm)
        scope, node = Scope(batch, torch.float64, totals=totals), self._average
        value = scope.lift(self._values([node], scope)[node.number], node.per, "token")
        return scope.number(value, "token").to(batch.advantages.dtype).expand(batch.tokens)

    def _nan_guard(self, batch: TokenBatch) -> Tensor:
        """1, or NaN where what the formula wants holds a NaN, a log-prob of +inf, or an infinite advantage or entropy,
        which masks, clips and comparisons would hide. Waits for no device."""
        sums = []
        for name in PER_TOKEN:
            value = getattr(batch, name)
            if value is not None and getattr(self.needs, name, True):
                summed = value.detach().sum()
                if name != "full_kl":  # which may be infinite, off the anchor's support
                    size = summed if name.endswith("logprobs") else summed.abs()  # a log-prob may be -inf
                    summed = torch.where(size == torch.inf, torch.nan, summed)
                sums.append(summed)
        return torch.where(torch.stack(sums).isnan().any(), torch.nan, 1.0)

    @property
    def _reader(self) -> str:
        return f"the objective {self.name}"


def _group_scale(batch: TokenBatch, comm: Collectives | None) -> Tensor:
    """1 over the groups times 1 over the tokens of the group [N]; groups may be spread over ranks."""
    ids = batch.group_ids
    assert ids is not None
    everyone, lengths = gather(ids, comm), gather(batch.lengths, comm)
    groups, index = torch.unique(everyone, return_inverse=True)
    tokens = batch.advantages.new_zeros(groups.shape[0], dtype=torch.float64).index_add(0, index, lengths.double())
    number = (tokens > 0).sum().clamp(min=1)
    mine = torch.searchsorted(groups, ids)[batch.sequence]
    return (1 / (number * tokens.clamp(min=1))).to(batch.advantages.dtype)[mine]


def _slopes(value: Tensor, leaves: Iterable[Tensor], again: bool = False) -> list[Tensor]:
    """The gradient of a value by each leaf, 0 where none flows. again: another one is asked for after it."""
    if not value.requires_grad:  # lost in a function of a user's own
        return [torch.zeros_like(leaf) for leaf in leaves]
    return list(torch.autograd.grad(value, list(leaves), retain_graph=again, allow_unused=True, materialize_grads=True))


class _Fed(torch.autograd.Function):
    """A loss whose gradient by what the model gives has been worked out."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, count: int, *rest: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(*rest[:count])
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        slopes = ctx.saved_tensors
        return (None, None, *(None for _ in slopes), *(gradient * slope for slope in slopes))
