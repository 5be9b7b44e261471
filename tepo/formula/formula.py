"""A formula as data: what it reads, in which stage, and what the trainer has to compute for it. No tensors here."""

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, Self

from tepo.common.errors import UserError
from tepo.formula.addends import Addend, Clip, addends, clips, factored
from tepo.formula.build import Builder
from tepo.formula.counts import check_defined, check_weight
from tepo.formula.declarations import functions_of
from tepo.formula.graph import Node, below, given_names
from tepo.formula.language import AVERAGES, GIVEN, GROUPS
from tepo.formula.syntax import Place, parse, summands

CURRENT = ("logp", "d", "H", "dH", "kl_old", "kl_initial")  # made by the policy that is trained
NEEDED = {  # by the fields of `Needs`
    "entropies": "entropies of the current policy",
    "entropy_gradient": "entropies with a gradient",
    "old_entropies": "entropies of the policy that sampled",
    "initial_logprobs": "log-probs of the initial policy",
    "teacher_logprobs": "log-probs of a teacher",
    "values": "the tracked success rate of each prompt",
    "sampler_logprobs": "log-probs of the sampler beside those of the old policy",
    "full_kl": "distributions over the vocabulary",
    "prepass": "current log-probs of the whole mini-batch before its first backward pass",
}


@dataclass(frozen=True)
class Needs:
    """Inputs that a formula reads beside rewards, group ids and lengths (`Groups`) and beside old log-probs,
    advantages, lengths and log-probs (`TokenBatch`). What is not named here need not be given."""

    entropy_gradient: bool = False
    entropies: bool = False
    old_entropies: bool = False
    initial_logprobs: bool = False
    teacher_logprobs: bool = False
    values: bool = False
    sampler_logprobs: bool = False
    full_kl: bool = False
    full_kl_anchor: str = "old"  # whose distributions `full_kl` is against: old | initial
    uid: bool = False
    group_ids: bool = False  # in the batch of the loss
    finished: bool = False
    max_new_tokens: bool = False
    prepass: bool = False  # `prepare` wants the current log-probs (and entropies) of the whole mini-batch

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the fields of `Groups` and `TokenBatch` that it reads."""
        options = ("entropy_gradient", "full_kl_anchor", "prepass")
        return tuple(part.name for part in fields(self) if part.name not in options and getattr(self, part.name))

    @property
    def initial_policy(self) -> bool:
        """True where a frozen copy of the policy before training is kept."""
        return self.initial_logprobs or (self.full_kl and self.full_kl_anchor == "initial")


@dataclass(frozen=True)
class Bounds:
    """The clip of a ratio."""

    of: Literal["token", "sequence"]  # each token's ratio, or the geometric mean of a response
    bounds: dict[str, float]  # the clip distances that act, by side (`low`, `high`)


@dataclass(frozen=True)
class Formula:
    """A method. Raises UserError, with a caret under the word, for what is wrong in a line."""

    name: str
    lines: Mapping[str, str]
    constants: Mapping[str, float]
    average: str = "tokens"  # one of AVERAGES, `groups`, or an expression
    keep: str = ""  # `finished` leaves cut responses out of the loss and its denominators
    where: Mapping[str, str] = field(default_factory=dict)  # of lines, constants and, by "", of the whole, for messages
    own: frozenset[str] = frozenset()  # names that must be read; what is inherited and not read falls away
    functions: Mapping[str, str] = field(default_factory=dict)  # files of a user's own by name; not executed here

    def __post_init__(self) -> None:
        if "J" not in self.lines:
            raise UserError(
                "the formula has no line J", where=self._where(""), fix="J: what is maximised, of each token"
            )
        if self.keep not in ("", "finished"):
            raise UserError(f"keep: {self.keep!r} is not known", where=self._where("keep"), fix="keep: finished")
        if not self._written.gradient:
            fix = "it reads logp, d, H, kl_old or kl_initial, outside of sg(…)"
            raise self._written.place.error("J has no gradient", fix)
        if self._written.per == "named":
            raise self._written.place.error("J is one per named reward", "sum_k(…)")
        check_defined(self._written, self.keep == "finished")
        _ = self._j, self.needs
        if unread := sorted(self.own - self.read):
            fix = "read it in a line, or leave it out"
            raise UserError(f"nothing reads {', '.join(unread)}", where=self._where(unread[0]), fix=fix)

    def _where(self, name: str) -> str:
        return self.where.get(name, self.name)

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The lines that are read, J last, each after those that it reads."""
        return self._builder.known

    @property
    def read(self) -> set[str]:
        """Names of the lines, constants and files of functions that are read, J among them."""
        return {"J"} | self._builder.read

    @cached_property
    def given(self) -> set[str]:
        """The given names that J reads, of the rollout and of the loss."""
        return given_names([self._written])

    @property
    def every_group(self) -> bool:
        """True where a group of like rewards teaches something too, and a group of one: nothing is taken over a group,
        or a teacher speaks."""
        grouped = any(node.op.endswith(("_g", "_t")) or node.value == "G" for node in self.handed.below())
        return self.needs.teacher_logprobs or not grouped

    @property
    def mapping(self) -> dict[str, Any]:
        """The parts that are read, as the configuration of a run keeps it and `load_objective` takes it."""
        parts = {"formula": self.lines, "constants": self.constants, "functions": self.functions}
        read = {key: {name: part[name] for name in part if name in self.read} for key, part in parts.items()}
        if not read["functions"]:
            del read["functions"]
        return {"name": self.name, **read, "average": self.average, "keep": self.keep}

    def without(self, *terms: str) -> tuple[Self, str, float]:
        """The formula without the first summand of J that is a number times one of these expressions, with the
        expression and the number; the expression is empty where there is none. A sum within another line stays."""
        targets = {self._builder.expression("J", text): text for text in terms}
        line, summand = "", ("", 0.0)
        for sign, part in summands(parse(Place("J", self._builder.lines["J"]))):
            text = ast.unparse(part)
            number, rest = factored(self._builder.expression("J", text), self._builder)
            if rest in targets and not summand[0]:
                summand = targets[rest], sign * number
            else:
                line += f" {'+' if sign > 0 else '-'} ({text})"
        if not summand[0]:
            return self, *summand
        return replace(self, lines={**self.lines, "J": line.removeprefix(" + ")}, own=frozenset()), *summand

    @cached_property
    def digest(self) -> str:
        """A hash of the meaning: lines substituted, constants folded, whatever the spelling."""
        return ":".join((self._written.digest, self._average.digest if self._average else GROUPS, self.keep))

    # the graph --------------------------------------------------------------------------------------------------------
    @cached_property
    def _builder(self) -> Builder:
        return Builder(self.lines, self.constants, self.where, functions_of(self.functions))

    @cached_property
    def _written(self) -> Node:
        """J as it is written."""
        return self._builder.line("J")

    @cached_property
    def handed(self) -> Node:
        """The one value that the loss reads of the rollout: the node through which all of it passes.

        Raises UserError where there are several."""
        root = self._written
        sources = {node.number for node in root.below() if node.stage == "rollout" or (node.rollout and not node.args)}
        if not sources:
            raise root.place.error("J reads nothing of the rollout", "A: (R - mean_g(R)) / (std_g(R) + eps), say")
        ways = [node for node in reversed(root.below()) if node.rollout and not node.loss and node.op != "responses"]
        for node in sorted(ways, key=lambda node: node.condition):  # a number rather than what it is compared with
            if not sources & ({other.number for other in below([root], {node.number})} - {node.number}):
                return node
        first = [name for name, node in self.nodes.items() if node.rollout and not node.loss]
        what = f"the loss reads several values of the rollout ({', '.join(first)})"
        raise root.place.error(what, "make one line of what is read of R, G and their means")

    @cached_property
    def _handing(self) -> dict[int, Node]:
        """The nodes of J where the value of the rollout is given, one per token, by the number that they had."""
        return self._builder.handing(self._written, self.handed)

    @cached_property
    def _j(self) -> Node:
        """J where the value of the rollout is given."""
        return self._handing[self._written.number]

    @cached_property
    def _average(self) -> Node | None:
        """The weight of a token as a node; None for a mean over groups."""
        name = self.average
        if name == GROUPS:
            return None
        if name.isidentifier() and name not in (*AVERAGES, *GIVEN, *self.constants):
            place = Place("average", name, 0, len(name), self._where("average"))
            raise place.unknown("average", name, (*AVERAGES, GROUPS))
        weight = self._builder.expression("average", AVERAGES.get(name, name))
        check_weight(weight)
        return weight

    @cached_property
    def planned(self) -> list[Node]:
        """Calls that look at all of a mini-batch, in order."""
        return [node for node in self._j.below() if node.stage == "mini-batch"]

    @cached_property
    def _loss_steps(self) -> list[tuple[Node, tuple[int, ...]]]:
        """The nodes of the loss, and of each the values that nothing reads after it."""
        planned, roots = {node.number for node in self.planned}, [part.node for part in self._addends]
        steps = below(roots, planned)
        outputs = [*roots, *self._watched.values(), *(node for clip in self._clips for node in clip.nodes)]
        kept_numbers = planned | {node.number for node in outputs}
        last = {part.number: node.number for node in steps for part in node.args if part.number not in kept_numbers}
        spent: dict[int, list[int]] = {node.number: [] for node in steps}
        for number, at in last.items():
            spent[at].append(number)
        return [(node, tuple(spent[node.number])) for node in steps]

    # what is reported of it -------------------------------------------------------------------------------------------
    def _line(self, name: str) -> Node | None:
        """The node of a line that the loss computes; None without one, and for a number."""
        node = self.nodes.get(name)
        loss_node = self._handing.get(node.number) if node else None
        return loss_node if loss_node and loss_node.op != "number" else None

    @cached_property
    def _addends(self) -> list[Addend]:
        return addends(self._j, self._builder, self._line("kl"))

    @cached_property
    def _clips(self) -> list[Clip]:
        return clips(self._addends[0].node, self._line("v"))

    @cached_property
    def _watched(self) -> dict[str, Node]:
        """Nodes whose values are wanted after the loss, by what they are called."""
        lines = {name: self._line(name) for name in ("A", "w", "v", "M", "kl")}
        roots, planned = [part.node for part in self._addends], {node.number for node in self.planned}
        numbers = {node.number for node in below(roots, planned)}
        return {name: node for name, node in lines.items() if node and node.number in numbers}

    @cached_property
    def clip(self) -> Bounds | None:
        """The clip of the ratio; None where there is none, or where it bounds another one than that of a token to the
        old policy or the geometric mean of a response."""
        ways: dict[Node | None, Literal["token", "sequence"]] = {
            self._builder.expression("clip", "exp(d)"): "token",
            self._builder.expression("clip", "exp(mean_i(d))"): "sequence",
        }
        for clip in self._clips:
            low, high = (part.value if part.op == "number" else None for part in clip.held.args[1:])
            if clip.of in ways and low is not None and high is not None:
                bounds = {"low": round(1 - float(low), 12), "high": round(float(high) - 1, 12)}
                if clip.side is clip.held or bounds["low"] == 1:  # min(w, clip(w)), which never holds from below
                    del bounds["low"]
                return Bounds(ways[clip.of], bounds)
        return None

    # what it wants of the trainer -------------------------------------------------------------------------------------
    @cached_property
    def needs(self) -> Needs:
        """All that the formula reads, and whether `prepare` reads log-probs."""
        if {"kl_old", "kl_initial"} <= self.given:
            raise self._j.place.error("kl_old and kl_initial in one formula", "one of them; the other as k3(…)")
        return Needs(
            **dict.fromkeys(self.inputs["rollout"] | self.inputs["loss"], True),
            entropy_gradient="H" in self._with_gradient,
            full_kl_anchor="initial" if "kl_initial" in self.given else "old",
            prepass=bool(given_names(self.planned) & set(CURRENT)),
        )

    @cached_property
    def inputs(self) -> dict[str, set[str]]:
        """Fields of `Groups` (rollout) and of `TokenBatch` (plan, loss) that are read, of those that `Needs` names."""
        loss = _fields_of([self._j, *([self._average] if self._average else [])]) | ({self.keep} - {""})
        called = {node.op for node in self.planned}
        loss |= {"uid"} if called & {"top_b", "first_b", "draw_b", "tail_b"} else set()
        loss |= {"group_ids"} if self.average == GROUPS or called & {"sum_gb", "max_gb"} else set()
        plan = _fields_of(self.planned) | loss & {"uid", "group_ids", "finished", "max_new_tokens"}
        return {"rollout": _fields_of([self.handed]), "plan": plan, "loss": loss}

    @cached_property
    def _with_gradient(self) -> set[str]:
        """Given names into which the gradient of J flows."""
        stops = {node.number for node in self._j.below() if not node.gradient}
        return {str(node.value) for node in below([self._j], stops) if node.gradient and node.op == "given"}


def _fields_of(roots: Iterable[Node]) -> set[str]:
    names = given_names(list(roots))
    names |= {"H", "H_old"} if "dH" in names else set()
    return {GIVEN[name].field for name in names & GIVEN.keys()} & {part.name for part in fields(Needs)}
