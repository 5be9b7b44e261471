"""A formula as a graph: one node a subexpression, with what is known of it before any number is."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from tepo.formula.syntax import Place

Per = Literal["", "response", "token", "named"]
"""What there is one value of: nothing (a number), a response [S], a token [N], a named reward of a response [S, K]."""
COMMUTATIVE = ("+", "*", "&", "|", "==", "!=", "min", "max")
LANGUAGE = 1  # raised when the meaning of a text changes


@dataclass(frozen=True)
class Function:
    """A function of the language. takes: what each argument is: `any`, `token`, `response`, `each` (a token or, lifted,
    a response), `condition`, `number` (a constant), `named`, `all` (a token's value, or one that says which it is); a
    `?` behind it: may be left out, a `*`: any number. gives: `same` as the arguments together, or what it is;
    `condition`: true or false of a token. stage: where it is computed: anywhere, rollout, or mini-batch (once, before
    the first backward). doc: for the table of the documentation. file, line, text: of one of a user's own."""

    takes: tuple[str, ...]
    gives: str
    stage: str
    doc: str
    file: str = ""
    line: int = 0
    text: str = ""

    @property
    def most(self) -> int:
        return 8 if self.takes[-1].endswith("*") else len(self.takes)

    @property
    def least(self) -> int:
        return sum(not one.endswith("?") for one in self.takes)


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """number: its place in the graph; arguments come before it. op: `number`, `given`, an operator or a function.
    value: the number, or the name of what is given. condition: true or false. rollout: it reads what only a rollout
    has; loss: what only the loss has. gradient: one flows through it into the policy. spelled: `tokens` or `responses`
    where a response's value says which of them a mean is over. function: what op is, if it is one. digest: of its
    meaning, whatever the spelling."""

    number: int
    op: str
    args: tuple["Node", ...]
    value: float | str | None
    per: Per
    condition: bool
    rollout: bool
    loss: bool
    gradient: bool
    spelled: str
    function: Function | None
    digest: str
    place: Place

    @property
    def stage(self) -> str:
        """The stage of its function; empty for anywhere."""
        return self.function.stage if self.function else ""

    def below(self) -> list["Node"]:
        """This node and all that it is made of, arguments first."""
        return below([self])


def below(roots: Sequence[Node], leaves: Collection[int] = ()) -> list[Node]:
    """Nodes and all that they are made of, arguments first; nothing below the leaves, which are numbers of nodes."""
    found: dict[int, Node] = {}
    waiting = [(root, False) for root in reversed(roots)]
    while waiting:
        node, ready = waiting.pop()
        if ready:
            found[node.number] = node
        elif node.number not in found:
            waiting.append((node, True))
            waiting += [(part, False) for part in reversed(node.args) if node.number not in leaves]
    return list(found.values())


class Graph:
    """Nodes, of which no two mean the same."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}

    def add(
        self,
        op: str,
        args: tuple[Node, ...],
        place: Place,
        *,
        value: float | str | None = None,
        per: Per = "",
        condition: bool = False,
        rollout: bool = False,
        loss: bool = False,
        gradient: bool = False,
        spelled: str = "",
        function: Function | None = None,
    ) -> Node:
        """The node of this meaning, made where there is none yet."""
        parts = [part.digest for part in args]
        meaning = [str(LANGUAGE), op, repr(value), *(sorted(parts) if op in COMMUTATIVE else parts)]
        meaning += [function.text] if function and function.text else []
        digest = hashlib.sha256("\0".join(meaning).encode()).hexdigest()
        if digest not in self.nodes:
            number = len(self.nodes)
            flags = per, condition, rollout, loss, gradient, spelled, function
            self.nodes[digest] = Node(number, op, args, value, *flags, digest, place)
        return self.nodes[digest]

    def number(self, value: float, place: Place) -> Node:
        return self.add("number", (), place, value=float(value))
