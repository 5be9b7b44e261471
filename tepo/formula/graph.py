"""A formula as a graph: one node a subexpression, with what is known of it before any number is."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Literal

from tepo.formula.syntax import Place

Per = Literal["", "response", "token", "named"]
"""What there is one value of: nothing (a number), a response [S], a token [N], a named reward of a response [S, K]."""


@dataclass(frozen=True)
class Function:
    """A function of the language.

    takes: a word an argument: `any`, `token`, `response`, `each` (a token or, lifted, a response), `condition`,
    `number` (a constant), `share` (one from 0 to 1), `named`, `several` (any but a number), `unnamed` (any but a named
    reward), `all` (a token's value, or one that says which it is); a `?` behind it: may be left out, a `*`: any
    number."""

    takes: tuple[str, ...]
    gives: str  # `same` as the arguments together, or what it is; `condition`: true or false of a token
    stage: str  # where it is computed: anywhere (empty), rollout, or mini-batch (once, before the first backward)
    doc: str
    file: str = ""  # this and what follows: of a user's own
    line: int = 0
    text: str = ""

    @property
    def most(self) -> int:
        return 8 if self.takes[-1].endswith("*") else len(self.takes)

    @property
    def least(self) -> int:
        return sum(not word.endswith("?") for word in self.takes)


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """A subexpression, there once however often it is written."""

    number: int  # its place in the graph; its arguments come before it
    op: str  # `number`, `given`, an operator or a function
    args: tuple["Node", ...]
    place: Place
    digest: str  # of its meaning, whatever the spelling
    value: float | str | None = None  # the number, or the name of what is given
    per: Per = ""
    condition: bool = False  # true or false
    rollout: bool = False  # it reads what only a rollout has
    loss: bool = False  # it reads what only a loss has
    gradient: bool = False  # one flows through it into the policy
    function: Function | None = None  # what op is, if it is one

    @property
    def stage(self) -> str:
        """The stage of its function; empty for anywhere."""
        return self.function.stage if self.function else ""

    @property
    def spelled(self) -> str:
        """`tokens` or `responses`, where a response's value says which of them a mean is over."""
        return self.op if self.op in ("tokens", "responses") else ""

    def below(self) -> list["Node"]:
        """This node and all that it is made of, arguments first."""
        return below([self])


def below(roots: Sequence[Node], leaves: Collection[int] = ()) -> list[Node]:
    """Nodes and all that they are made of, arguments first; nothing below the leaves, which are numbers of nodes."""
    nodes: dict[int, Node] = {}
    waiting = [(root, False) for root in reversed(roots)]
    while waiting:
        node, ready = waiting.pop()
        if ready:
            nodes[node.number] = node
        elif node.number not in nodes:
            waiting.append((node, True))
            if node.number not in leaves:
                waiting += zip(reversed(node.args), repeat(False), strict=False)
    return list(nodes.values())


def given_names(roots: Sequence[Node]) -> set[str]:
    """The given names that nodes are made of."""
    return {str(node.value) for node in below(roots) if node.op == "given"}
