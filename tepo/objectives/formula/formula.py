"""A formula at work: advantages once a rollout, a plan once a mini-batch, a loss each micro-batch.

advantages = objective.advantages(groups)          # what the loss reads of the rollout
plan = objective.prepare(batch, comm)              # denominators and every `_b` value, over all ranks
out = objective.loss(micro_batch, plan.select(i))  # losses (and gradients) add up, over ranks too"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.objectives.axes.aggregation import TokenMean, count, token_scale
from tepo.objectives.axis import Needs
from tepo.objectives.batch import Comm, Groups, TokenBatch
from tepo.objectives.formula.build import AVERAGES, GROUPS, HANDED, Builder
from tepo.objectives.formula.functions import FUNCTIONS, Scope, Value, _reduced, compute
from tepo.objectives.formula.graph import Node
from tepo.objectives.inputs import check_has, check_lengths, numbers_of
from tepo.objectives.segments import indices_of, token_indices, total
from tepo.objectives.terms import finite_logprobs

Makes = Callable[[Node, Scope], Value]
_NEEDED = {  # what a name needs of the trainer
    "finished": ("finished",),
    "H_old": ("old_entropies",),
    "L": ("max_new_tokens",),
    "logp_sampler": ("sampler_logprobs",),
    "logp_initial": ("initial_logprobs",),
    "H": ("entropies",),
    "dH": ("entropies", "old_entropies"),
    "kl_old": ("full_kl",),
    "kl_initial": ("full_kl",),
}
CURRENT = ("logp", "d", "H", "dH", "kl_old", "kl_initial")  # made by the policy that is trained
_OF_GROUPS = ("old_entropies", "finished", "max_new_tokens")
_LOGPROBS = ("logprobs", "old_logprobs", "initial_logprobs", "sampler_logprobs")
_WATCHED = (*_LOGPROBS, "entropies", "old_entropies", "full_kl")


@dataclass(frozen=True)
class FormulaPlan:
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

    def select(self, sequences: Any) -> "FormulaPlan":
        """The plan of the given sequences, as `TokenBatch.select`."""
        chosen, indices = indices_of(self.lengths, self.counts, numbers_of(sequences, len(self.counts), self))
        return self._each(self.lengths[chosen], lambda value: value[indices])

    def spread(self, batch: TokenBatch, kept: Tensor) -> "FormulaPlan":
        """The plan of a batch whose sequences `kept` are this plan's; 0 on the tokens of the others."""
        indices, size = token_indices(batch.lengths, kept), batch.tokens
        return self._each(batch.lengths, lambda value: value.new_zeros(size).index_copy(0, indices, value.contiguous()))

    def _each(self, lengths: Tensor, change: Callable[[Tensor], Tensor]) -> "FormulaPlan":
        values = {number: change(value) if value.dim() else value for number, value in self.values.items()}
        return replace(self, lengths=lengths, scale=change(self.scale), values=values)


@dataclass(frozen=True)
class FormulaLoss:
    """loss: scalar with a graph, divided by the mini-batch's denominators."""

    loss: Tensor


@dataclass(frozen=True)
class Formula:
    """A method. lines, constants: texts and numbers by name; average: one of AVERAGES, `groups`, or an expression;
    keep: `finished` leaves cut responses out of the loss and its denominators. where: the place of a line or a
    constant, for messages; own: the names that must be read (an inherited one that nothing reads falls away).

    Raises UserError, with a caret under the word, for what is wrong in a line."""

    name: str
    lines: Mapping[str, str]
    constants: Mapping[str, float]
    average: str = "tokens"
    keep: str = ""
    where: Mapping[str, str] | None = None
    own: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if "J" not in self.lines:
            raise UserError(f"the formula of {self.name} has no line J", fix="J: what is maximised, of each token")
        if self.keep not in ("", "finished"):
            raise UserError(
                f"keep: {self.keep!r} is not known",
                where=(self.where or {}).get("keep", self.name),
                fix="keep: finished",
            )
        if not self._written.gradient:
            raise self._written.place.error(
                "J has no gradient", "it reads logp, d, H, kl_old or kl_initial, outside of sg(…)"
            )
        if self._written.per == "named":
            raise self._written.place.error("J is one a named reward", "sum_k(…)")
        _ = self._j, self.needs
        unread = sorted(self.own - self._builder.read - {"J"})
        if unread:
            where = (self.where or {}).get(unread[0], self.name)
            raise UserError(f"nothing reads {', '.join(unread)}", where=where, fix="read it in a line, or leave it out")

    @cached_property
    def _builder(self) -> Builder:
        return Builder(self.lines, self.constants, self.where or {})

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The lines that are read, J last, each after those that it reads."""
        return self._builder.known

    @property
    def read(self) -> frozenset[str]:
        """Names of the lines and constants that are read."""
        return frozenset({"J", *self._builder.read})

    @cached_property
    def _written(self) -> Node:
        """J as it is written."""
        return self._builder.line("J")

    @cached_property
    def _j(self) -> Node:
        """J where the value of the rollout is given, one a token."""
        return self._builder.handing(self._written, self.handed)

    @cached_property
    def _average(self) -> Node | None:
        """The weight of a token as a node; None for a mean over groups."""
        if self.average == GROUPS:
            return None
        made = self._builder.expression("average", AVERAGES.get(self.average, self.average))
        if (
            made.gradient
            or made.rollout
            or any(one.op in FUNCTIONS and FUNCTIONS[one.op].stage for one in made.below())
        ):
            raise made.place.error("an average reads N, B, T, L and constants alone")
        return made

    @cached_property
    def handed(self) -> Node:
        """The one value that the loss reads of the rollout: the node through which all of it passes.

        Raises UserError where there are several."""
        root = self._written
        sources = {one.number for one in root.below() if one.op in _ROLLOUT or (one.rollout and not one.args)}
        if not sources:
            raise root.place.error("J reads nothing of the rollout", "A: (R - mean_g(R)) / (std_g(R) + eps), say")
        ways = [node for node in reversed(list(root.below())) if node.rollout and not node.loss]
        for node in sorted(ways, key=lambda node: node.condition):  # a number rather than what it is compared with
            if not sources & ({one.number for one in nodes_below(root, {node.number})} - {node.number}):
                return node
        first = [name for name, node in self._builder.known.items() if node.rollout and not node.loss]
        what = f"the loss reads several values of the rollout ({', '.join(first)})"
        raise root.place.error(what, "make one line of what is read of R, G and their means")

    @cached_property
    def digest(self) -> str:
        """A hash of the meaning: lines substituted, constants folded, whatever the spelling."""
        return ":".join((self._written.digest, self._average.digest if self._average else GROUPS, self.keep))

    @cached_property
    def planned(self) -> list[Node]:
        """Calls that look at all of a mini-batch, in order."""
        return self._staged(self._j)

    @staticmethod
    def _staged(root: Node) -> list[Node]:
        return [one for one in root.below() if one.op in FUNCTIONS and FUNCTIONS[one.op].stage == "mini-batch"]

    @cached_property
    def needs(self) -> Needs:
        """All that the formula reads, and whether `prepare` reads log-probs."""
        nodes = [*self._written.below(), *(self._average.below() if self._average else ())]
        read = {str(one.value) for one in nodes if one.op == "given"} | ({self.keep} - {""})
        if {"kl_old", "kl_initial"} <= read:
            raise self._j.place.error("kl_old and kl_initial in one formula", "one of them; the other as k3(…)")
        flags = {flag: True for name in read for flag in _NEEDED.get(name, ())}
        below = {str(one.value) for node in self.planned for one in node.below() if one.op == "given"}
        return Needs(
            **flags,
            entropy_gradient="H" in self._with_gradient,
            full_kl_anchor="initial" if "kl_initial" in read else "old",
            uid=any(node.op in ("top_b", "first_b", "draw_b") for node in self.planned),
            group_ids=self.average == GROUPS,
            prepass=bool(below & set(CURRENT)),
        )

    @cached_property
    def _with_gradient(self) -> set[str]:
        """Given names into which the gradient of J flows."""
        found, waiting, seen = set(), [self._j], set()
        while waiting:
            node = waiting.pop()
            if node.gradient and node.number not in seen:
                seen.add(node.number)
                waiting += node.args
                if node.op == "given":
                    found.add(str(node.value))
        return found

    @cached_property
    def _of_rollout(self) -> set[str]:
        """Fields of `Groups` that are read."""
        read = {str(one.value) for one in self.handed.below() if one.op == "given"}
        return {flag for name in read for flag in _NEEDED.get(name, ())}

    @cached_property
    def _of_loss(self) -> set[str]:
        """Fields of `TokenBatch` that are read."""
        nodes = [*self._j.below(), *(self._average.below() if self._average else ())]
        read = {str(one.value) for one in nodes if one.op == "given"} | ({self.keep} - {""})
        flags = {flag for name in read for flag in _NEEDED.get(name, ())}
        return flags | ({"uid"} if self.needs.uid else set()) | ({"group_ids"} if self.needs.group_ids else set())

    @cached_property
    def _loss_steps(self) -> list[tuple[Node, tuple[int, ...]]]:
        """The nodes of the loss, and of each the values that nothing reads after it."""
        kept = {node.number for node in self.planned}
        steps = nodes_below(self._j, kept)
        last = {part.number: node.number for node in steps if node.number not in kept for part in node.args}
        return [(node, tuple(number for number, at in last.items() if at == node.number)) for node in steps]

    # at work ----------------------------------------------------------------------------------------------------------
    def advantages(self, groups: Groups, comm: Comm | None = None) -> Tensor:
        """The value that the loss reads of the rollout, one a token [N], detached, in the dtype of the rewards. `comm`
        is for statistics over the whole rollout."""
        check_has(groups, [name for name in _OF_GROUPS if name in self._of_rollout], self._reader)
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
            spoilt = _reduced(0 * groups.rewards.double(), index, number, "sum")  # NaN where a reward of the group is
            if "old_entropies" in self._of_rollout:
                entropies = 0 * groups.old_entropies.double()  # type: ignore[union-attr]
                spoilt = spoilt + _reduced(entropies, index[groups.sequence], number, "sum")
            return (per_token + spoilt[index][groups.sequence]).to(groups.rewards.dtype)

    def prepare(self, batch: TokenBatch, comm: Comm | None = None, salt: int = 0) -> FormulaPlan:
        """Denominators and `_b` values over the whole mini-batch and all ranks. `salt` (from seed, step …) varies
        random draws."""
        below = {str(one.value) for node in self.planned for one in node.below() if one.op == "given"}
        wanted = {flag for name in below for flag in _NEEDED.get(name, ())} | {"uid", "group_ids", "finished"}
        wanted = (wanted | {"max_new_tokens"}) & self._of_loss
        check_has(batch, [*sorted(wanted), *(["logprobs"] if self.needs.prepass else [])], self._reader)
        check_lengths(batch, batch.counts, "advantages")
        with torch.no_grad():
            kept = torch.nonzero(batch.want("finished", self._reader))[:, 0] if self.keep else None
            own = batch if kept is None else batch.select(kept)
            totals = count(own, comm)
            scope, values = Scope(own, batch.advantages.dtype, comm, salt), dict[int, Value]()
            given = self._givens(own, totals)
            steps = {one.number: one for node in self.planned for one in node.below()}
            for number in sorted(steps):
                values[number] = self._value(steps[number], scope, values, given)
            found = {node.number: values[node.number] for node in self.planned}
            plan = FormulaPlan(own.lengths, totals, self._scale(own, totals, comm), found, kept is not None)
            return plan if kept is None else plan.spread(batch, kept)

    def loss(self, batch: TokenBatch, plan: FormulaPlan) -> FormulaLoss:
        """The loss of a (micro-)batch with its part of the plan."""
        check_has(batch, ["logprobs", *sorted(self._of_loss)], self._reader)
        if plan.lengths.shape != batch.lengths.shape:
            what = f"the plan is of {plan.lengths.shape[0]} responses and the batch of {batch.lengths.shape[0]}"
            raise UserError(what, where=self._reader, fix="select both alike: batch.select(part), plan.select(part)")
        scope, values = Scope(batch, batch.advantages.dtype), dict[int, Value](plan.values)
        given = self._givens(batch, plan.totals)
        for node, spent in self._loss_steps:
            if node.number not in values:
                with torch.set_grad_enabled(node.gradient and torch.is_grad_enabled()):
                    values[node.number] = self._value(node, scope, values, given)
            for number in spent:
                values.pop(number, None)
        gain = scope.lift(scope.typed(values[self._j.number], self._j.per), self._j.per, "token")
        return FormulaLoss(-total(plan.scale * gain) * self._intact(batch))

    # values -----------------------------------------------------------------------------------------------------------
    def _value(
        self, node: Node, scope: Scope, values: dict[int, Value], given: Callable[[Node, Scope], Value]
    ) -> Value:
        if node.op == "number":
            return node.value
        if node.op == "given":
            return given(node, scope)
        return compute(node, scope, [values[part.number] for part in node.args])

    def _given_of_rollout(self, node: Node, scope: Scope) -> Value:
        groups = scope.source
        assert isinstance(groups, Groups)
        match node.value:
            case "R":
                return groups.rewards.double()
            case "R_k":
                return groups.rewards.double()[:, None] if groups.named is None else groups.named.double()
            case "weight_k":
                return groups.lengths.new_tensor(groups.weights or [1.0], dtype=torch.float64)[None]
            case "G":
                index, number = scope.groups(groups.lengths)
                return _reduced(torch.ones_like(index, dtype=torch.float64), index, number, "sum")[index]
            case "H_old":
                return groups.old_entropies.double()  # type: ignore[union-attr]
            case _:
                return _of_either(str(node.value), scope)

    def _givens(self, batch: TokenBatch, totals: Tensor) -> Makes:
        """Values that are given to the loss, each made once."""
        made: dict[str, Value] = {}

        def given(node: Node, scope: Scope) -> Value:
            name = str(node.value)
            if name not in made:
                made[name] = make(name, scope)
            return made[name]

        def make(name: str, scope: Scope) -> Value:
            match name:
                case name if name == HANDED:
                    return batch.advantages
                case "logp":
                    return finite_logprobs(batch.want("logprobs", self._reader))
                case "logp_old":
                    return finite_logprobs(batch.old_logprobs)
                case "logp_sampler" | "logp_initial":
                    return finite_logprobs(batch.want(f"{name.removeprefix('logp_')}_logprobs", self._reader))
                case "d":
                    current, old = (given_of(one, scope) for one in ("logp", "logp_old"))
                    return current - old
                case "H" | "H_old" | "kl_old" | "kl_initial":
                    field = {"H": "entropies", "H_old": "old_entropies"}.get(name, "full_kl")
                    return batch.want(field, self._reader)
                case "dH":
                    old = batch.want("old_entropies", self._reader)
                    return batch.want("entropies", self._reader).detach() - old
                case "N" | "B":
                    return totals[0 if name == "N" else 1].clamp(min=1)
                case _:
                    return _of_either(name, scope)

        def given_of(name: str, scope: Scope) -> Value:
            if name not in made:
                made[name] = make(name, scope)
            return made[name]

        return given

    def _scale(self, batch: TokenBatch, totals: Tensor, comm: Comm | None) -> Tensor:
        """Weight of each token in the sum [N]."""
        if self._average is None:
            return token_scale(TokenMean(over="group"), batch, totals, comm)
        scope, values, given = Scope(batch, torch.float64), dict[int, Value](), self._givens(batch, totals)
        for node in self._average.below():
            values[node.number] = self._value(node, scope, values, given)
        made = scope.lift(values[self._average.number], self._average.per, "token")
        made = made if isinstance(made, Tensor) else torch.tensor(made, dtype=torch.float64, device=totals.device)
        return made.to(batch.advantages.dtype).expand(batch.tokens)

    def _intact(self, batch: TokenBatch) -> Tensor:
        """1, or NaN where what the formula wants holds a NaN, a log-prob of +inf or an infinite entropy, which masks,
        clips and comparisons would hide. Waits for no device."""
        sums = []
        for name in _WATCHED:
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


_ROLLOUT = {name for name, one in FUNCTIONS.items() if one.stage == "rollout"}


def _of_either(name: str, scope: Scope) -> Value:
    """A value that is given to a rollout and to a loss alike."""
    source = scope.source
    match name:
        case "T":
            return source.lengths.double()
        case "t":
            return (source.positions + 1).to(scope.dtype)
        case "finished":
            assert source.finished is not None
            return source.finished.double()
        case _:
            assert name == "L", name
            assert source.max_new_tokens is not None
            return float(source.max_new_tokens)


def nodes_below(root: Node, leaves: set[int]) -> list[Node]:
    """A node and all that it is made of, arguments first; nothing below the leaves."""
    found: dict[int, Node] = {}
    waiting = [(root, False)]
    while waiting:
        one, ready = waiting.pop()
        if ready:
            found[one.number] = one
        elif one.number not in found:
            waiting.append((one, True))
            waiting += [(part, False) for part in (() if one.number in leaves else one.args)]
    return list(found.values())
