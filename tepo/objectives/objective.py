"""An objective: a formula at work. Advantages once a rollout, a plan once a mini-batch, a loss each micro-batch.

advantages = objective.advantages(groups)          # what the loss reads of the rollout
plan = objective.prepare(batch, comm)              # denominators and every `_b` value, over all ranks
out = objective.loss(micro_batch, plan.select(i))  # losses (and gradients) add up, over ranks too"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.formula.addends import Clip
from tepo.formula.formula import Formula
from tepo.formula.graph import Node
from tepo.formula.language import HANDED
from tepo.objectives.batch import Comm, Groups, TokenBatch, all_sum, gather
from tepo.objectives.functions import Scope, Value, compute, reduced
from tepo.objectives.inputs import check_has, check_lengths, numbers_of
from tepo.objectives.metric_sums import Metrics, token_metrics
from tepo.objectives.segments import indices_of, token_indices, total

LOGPROB_FLOOR = -1e5  # stands for log 0 (a token off the policy's support): finite, and without gradient
_LOGPROBS = ("logprobs", "old_logprobs", "initial_logprobs", "sampler_logprobs")
WATCHED = (*_LOGPROBS, "advantages", "entropies", "old_entropies", "full_kl")
_OUTPUTS = {  # of the model, with the names that are made of them and carry its gradient
    "logprobs": ("logp", "d"),
    "entropies": ("H",),
    "full_kl": ("kl_old", "kl_initial"),
}


@dataclass(frozen=True)
class Plan:
    """Denominators and `_b` values for sequences of these `lengths` [S], detached. totals: tokens and non-empty
    sequences in the loss over all ranks, float64 [2]. scale: weight of each token in the sum [N]. values: by the number
    of the node, a number or [N]. filtered: whether sequences were left out."""

    lengths: Tensor
    totals: Tensor
    scale: Tensor
    values: Mapping[int, Tensor]
    filtered: bool

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
        indices, size = token_indices(batch.lengths, kept), batch.tokens
        return self._each(batch.lengths, lambda value: value.new_zeros(size).index_copy(0, indices, value.contiguous()))

    def _each(self, lengths: Tensor, change: Callable[[Tensor], Tensor]) -> "Plan":
        values = {number: change(value) if value.dim() else value for number, value in self.values.items()}
        return replace(self, lengths=lengths, scale=change(self.scale), values=values)


@dataclass(frozen=True)
class Loss:
    """loss: scalar with a graph, divided by the mini-batch's denominators. tokens: named per-token diagnostics [N],
    detached."""

    loss: Tensor
    metrics: Metrics
    tokens: dict[str, Tensor]


class Objective(Formula):
    """A formula that takes tensors."""

    def advantages(self, groups: Groups, comm: Comm | None = None) -> Tensor:
        """The value that the loss reads of the rollout, one a token [N], detached, in the dtype of the rewards. `comm`
        is for statistics over the whole rollout."""
        check_has(groups, sorted(self._of_rollout), self._reader)
        check_lengths(groups, groups.counts, "" if groups.old_entropies is None else "old_entropies")
        scope = Scope(groups, torch.float64, comm)
        values: dict[int, Value] = {}
        with torch.no_grad():
            for node in self.handed.below():
                values[node.number] = self._value(node, scope, values, self._given_of_rollout)
            made = scope.typed(values[self.handed.number], self.handed.per)
            per_token = scope.lift(made, self.handed.per, "token")
            if not isinstance(per_token, Tensor) or per_token.dim() == 0:
                per_token = torch.zeros(groups.tokens, dtype=torch.float64, device=groups.lengths.device) + per_token
            index, number = scope.groups(groups.rewards)
            spoilt = reduced(0 * groups.rewards.double(), index, number, "sum")  # NaN where a reward of the group is
            if "old_entropies" in self._of_rollout:
                entropies = 0 * groups.old_entropies.double()  # type: ignore[union-attr]
                spoilt = spoilt + reduced(entropies, index[groups.sequence], number, "sum")
            return (per_token + spoilt[index][groups.sequence]).to(groups.rewards.dtype)

    def prepare(self, batch: TokenBatch, comm: Comm | None = None, salt: int = 0, totals: Tensor | None = None) -> Plan:
        """Denominators and `_b` values over the whole mini-batch and all ranks. `salt` (from seed, step …) varies
        random draws. totals: as in the plan, where a trainer knows them and the batch is a part of its mini-batch."""
        check_has(batch, sorted(self._of_plan), self._reader)
        check_lengths(batch, batch.counts, "advantages")
        with torch.no_grad():
            kept = torch.nonzero(batch.want("finished", self._reader))[:, 0] if self.keep else None
            own = batch if kept is None else batch.select(kept)
            if totals is None:
                totals = all_sum(torch.stack([own.lengths.sum(), (own.lengths > 0).sum()]).double(), comm)
            scope, values = Scope(own, batch.advantages.dtype, comm, salt), dict[int, Value]()
            inputs = _Inputs(own, totals, {}, self._reader)
            steps = {one.number: one for node in self.planned for one in node.below()}
            for number in sorted(steps):
                values[number] = self._value(steps[number], scope, values, inputs.of)
            found = {node.number: values[node.number] for node in self.planned}
            plan = Plan(own.lengths, totals, self._scale(own, totals, comm), found, kept is not None)
            return plan if kept is None else plan.spread(batch, kept)

    def loss(self, batch: TokenBatch, plan: Plan, weights: Tensor | None = None) -> Loss:
        """The loss of a (micro-)batch with its part of the plan. weights: of the policy term, beside what the formula
        says [N]."""
        check_has(batch, ["logprobs", *sorted(self._of_loss)], self._reader)
        if plan.lengths.shape != batch.lengths.shape:
            what = f"the plan is of {plan.lengths.shape[0]} responses and the batch of {batch.lengths.shape[0]}"
            raise UserError(what, where=self._reader, fix="select both alike: batch.select(part), plan.select(part)")
        if plan.lengths.device != batch.lengths.device:
            what = f"the plan is on {plan.lengths.device} and the batch on {batch.lengths.device}"
            raise UserError(what, where=self._reader, fix="prepare and loss on one device")
        outputs = {name: getattr(batch, name) for name in self._outputs}
        leaves = {name: value.detach().requires_grad_() for name, value in outputs.items()}
        scope, values = Scope(batch, batch.advantages.dtype), dict[int, Value](plan.values)
        inputs = _Inputs(batch, plan.totals, leaves, self._reader)
        with torch.enable_grad():
            for node, spent in self._loss_steps:
                if node.number not in values:
                    with torch.set_grad_enabled(node.gradient):
                        values[node.number] = self._value(node, scope, values, inputs.of)
                for number in spent:
                    values.pop(number, None)
            parts = [self._per_token(one.node, scope, values) for one in self._addends]
            if weights is not None:
                parts[0] = weights.detach() * parts[0]
            totals = [total(plan.scale * part) for part in parts]
            intact = self._intact(batch)
            loss = -totals[0]
            for one, part in zip(self._addends[1:], totals[1:], strict=True):
                loss = loss - one.coefficient * part
            loss = loss * intact
        apart = len(totals) > 1 and not self._clips
        with torch.no_grad():
            slopes = _slopes(loss, leaves.values(), again=apart)
            policy = _slopes(totals[0], leaves.values()) if apart else slopes
            tokens = self._tokens(batch, scope, values, policy, inputs.of("d", scope))
            named = {"actor/pg_loss": -totals[0]}
            for one, part in zip(self._addends[1:], totals[1:], strict=True):
                named[one.metric] = named[one.metric] + part if one.metric in named else part
            metrics = self._metrics(batch, plan, tokens, named)
        return Loss(_Fed.apply(loss.detach(), len(slopes), *slopes, *outputs.values()), metrics, tokens)

    @cached_property
    def _outputs(self) -> list[str]:
        """Outputs of the model into which the gradient of J flows."""
        return [name for name, made in _OUTPUTS.items() if set(made) & self._with_gradient]

    def _per_token(self, node: Node, scope: Scope, values: Mapping[int, Value]) -> Tensor:
        made = scope.typed(values[node.number], node.per)
        return made if node.per else made.expand(scope.source.tokens)

    def _tokens(
        self, batch: TokenBatch, scope: Scope, values: Mapping[int, Value], slopes: list[Tensor], d: Tensor
    ) -> dict[str, Tensor]:
        """Diagnostics [N]. slopes: of the policy term in what the model gives. d: the log-ratio."""
        seen = {name: self._per_token(node, scope, values) for name, node in self._watched.items()}
        advantage = seen.get("A", batch.advantages)
        if self._clips:
            clipped = reduce(torch.logical_or, [self._acts(one, scope, values) for one in self._clips])
        else:
            clipped = reduce(torch.logical_and, [slope == 0 for slope in slopes]) & (advantage != 0)
        named = {
            "log_ratio": d,
            "ratio": seen.get("w"),
            "advantage": advantage,
            "clipped": clipped,
            "correction" if self._corrects else "weight": seen.get("v"),
            "kl": seen.get("kl"),
            "kl_mask": seen.get("M"),
        }
        if batch.entropies is not None and batch.old_entropies is not None:
            named["entropy_change"] = batch.entropies - batch.old_entropies
        return {name: value.detach() for name, value in named.items() if value is not None}

    @property
    def _corrects(self) -> bool:
        """Tell whether the weight `v` corrects the gap between sampler and trainer."""
        weight = self._line("v")
        return weight is not None and any(one.value == "logp_sampler" for one in weight.below())

    def _acts(self, clip: Clip, scope: Scope, values: Mapping[int, Value]) -> Tensor:
        """Tokens where a clip holds its ratio, and the `min` around it takes what it holds [N]."""
        acts = self._per_token(clip.held, scope, values) != self._per_token(clip.of, scope, values)
        if clip.side is not None:
            side = self._per_token(clip.side, scope, values)
            for other in clip.others:
                acts = acts & (side < self._per_token(other, scope, values))
        return acts

    def _metrics(
        self, batch: TokenBatch, plan: Plan, tokens: Mapping[str, Tensor], totals: Mapping[str, Tensor]
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
        means = {name: value for name, value in named.items() if value is not None}
        maxima = {"actor/ratio_max": tokens["ratio"]} if "ratio" in tokens else {}
        return token_metrics(means, totals, maxima, plan.scale > 0 if plan.filtered else None, plan.totals[0])

    # values -----------------------------------------------------------------------------------------------------------
    def _value(self, node: Node, scope: Scope, values: dict[int, Value], given: Callable[[str, Scope], Value]) -> Value:
        if node.op == "number":
            return node.value
        if node.op == "given":
            return given(str(node.value), scope)
        return compute(node, scope, [values[part.number] for part in node.args])

    def _given_of_rollout(self, name: str, scope: Scope) -> Value:
        groups = scope.source
        assert isinstance(groups, Groups)
        match name:
            case "R":
                return groups.rewards.double()
            case "R_k":
                return groups.rewards.double()[:, None] if groups.named is None else groups.named.double()
            case "weight_k":
                return groups.lengths.new_tensor(groups.weights or [1.0], dtype=torch.float64)[None]
            case "G":
                index, number = scope.groups(groups.lengths)
                return reduced(torch.ones_like(index, dtype=torch.float64), index, number, "sum")[index]
            case "H_old":
                return groups.old_entropies.double()  # type: ignore[union-attr]
            case _:
                return _of_either(name, scope)

    def _scale(self, batch: TokenBatch, totals: Tensor, comm: Comm | None) -> Tensor:
        """Weight of each token in the sum [N]."""
        if self._average is None:
            return _group_scale(batch, comm)
        scope, inputs = Scope(batch, torch.float64), _Inputs(batch, totals, {}, self._reader)
        values: dict[int, Value] = {}
        for node in self._average.below():
            values[node.number] = self._value(node, scope, values, inputs.of)
        made = scope.lift(values[self._average.number], self._average.per, "token")
        made = made if isinstance(made, Tensor) else torch.tensor(made, dtype=torch.float64, device=totals.device)
        return made.to(batch.advantages.dtype).expand(batch.tokens)

    def _intact(self, batch: TokenBatch) -> Tensor:
        """1, or NaN where what the formula wants holds a NaN, a log-prob of +inf, or an infinite advantage or entropy,
        which masks, clips and comparisons would hide. Waits for no device."""
        sums = []
        for name in WATCHED:
            value = getattr(batch, name)
            if value is not None and getattr(self.needs, name, True):
                summed = value.detach().sum()
                if name != "full_kl":  # which may be infinite, off the anchor's support
                    size = summed if name in _LOGPROBS else summed.abs()  # a log-prob may be -inf
                    summed = torch.where(size == torch.inf, torch.nan, summed)
                sums.append(summed)
        return torch.where(torch.stack(sums).isnan().any(), torch.nan, 1.0)

    @property
    def _reader(self) -> str:
        return f"the objective {self.name}"


def finite_logprobs(logprobs: Tensor) -> Tensor:
    """Log-probs with -inf replaced by a finite floor (no gradient there). NaN stays NaN, to be caught by the
    trainer."""
    return logprobs.clamp(min=LOGPROB_FLOOR)


def _group_scale(batch: TokenBatch, comm: Comm | None) -> Tensor:
    """1 over the groups times 1 over the tokens of the group [N]; groups may be spread over ranks."""
    ids = batch.want("group_ids", "average: groups")
    everyone, lengths = gather(ids, comm), gather(batch.lengths, comm)
    groups, index = torch.unique(everyone, return_inverse=True)
    tokens = batch.advantages.new_zeros(groups.shape[0], dtype=torch.float64).index_add(0, index, lengths.double())
    number = (tokens > 0).sum().clamp(min=1)
    mine = torch.searchsorted(groups, ids)[batch.sequence]
    return (1 / (number * tokens.clamp(min=1))).to(batch.advantages.dtype)[mine]


def _of_either(name: str, scope: Scope) -> Value:
    """A value that is given to a rollout and to a loss alike."""
    source = scope.source
    match name:
        case "T":
            return scope.spread(source.lengths)
        case "t":
            return (source.positions + 1).to(scope.dtype)
        case "finished":
            assert source.finished is not None
            return scope.spread(source.finished)
        case _:
            assert name == "L", name
            assert source.max_new_tokens is not None
            return float(source.max_new_tokens)


class _Inputs:
    """Values that are given to the loss, each made once. leaves: outputs of the model whose gradient is wanted."""

    def __init__(self, batch: TokenBatch, totals: Tensor, leaves: Mapping[str, Tensor], reader: str) -> None:
        self.batch, self.totals, self.leaves, self.reader = batch, totals, leaves, reader
        self.made: dict[str, Value] = {}

    def of(self, name: str, scope: Scope) -> Value:
        """The value of a name."""
        if name not in self.made:
            self.made[name] = self._make(name, scope)
        return self.made[name]

    def _make(self, name: str, scope: Scope) -> Value:
        match name:
            case "logp":
                return finite_logprobs(self._field("logprobs"))
            case "logp_old" | "logp_sampler" | "logp_initial":
                return finite_logprobs(self._field(f"{name.removeprefix('logp_')}_logprobs"))
            case "d":
                return self.of("logp", scope) - self.of("logp_old", scope)
            case "H" | "H_old" | "kl_old" | "kl_initial":
                return self._field({"H": "entropies", "H_old": "old_entropies"}.get(name, "full_kl"))
            case "dH":
                return self._field("entropies").detach() - self._field("old_entropies")
            case "N" | "B":
                return self.totals[0 if name == "N" else 1].clamp(min=1)
            case name if name == HANDED:
                return self.batch.advantages
            case _:
                return _of_either(name, scope)

    def _field(self, name: str) -> Tensor:
        return self.leaves[name] if name in self.leaves else self.batch.want(name, self.reader)


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
