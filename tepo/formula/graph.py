"""A formula as a graph: one node a subexpression, with what is known of it before any number is."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tepo.formula.syntax import Place

Per = Literal["", "response", "token", "named"]
"""What there is one value of: nothing (a number), a response [S], a token [N], a named reward of a response [S, K]."""
COMMUTATIVE = ("+", "*", "&", "|", "==", "!=", "min", "max")
LANGUAGE = 1  # raised when the meaning of a text changes


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """number: its place in the graph; arguments come before it. op: `number`, `given`, an operator or a function.
    value: the number, or the name of what is given. condition: true or false. rollout: it reads what only a rollout
    has; loss: what only the loss has. gradient: one flows through it into the policy. spelled: `tokens` or `responses`
    where a response's value says which of them a mean is over. digest: of its meaning, whatever the spelling."""

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
    digest: str
    place: Place

    def below(self) -> Iterator["Node"]:
        """This node and all that it is made of, arguments first."""
        seen: set[int] = set()
        waiting: list[tuple[Node, bool]] = [(self, False)]
        while waiting:
            node, ready = waiting.pop()
            if ready:
                yield node
            elif node.number not in seen:
                seen.add(node.number)
                waiting.append((node, True))
                waiting += ((part, False) for part in reversed(node.args))


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
    ) -> Node:
        """The node of this meaning, made where there is none yet."""
        parts = [part.digest for part in args]
        meaning = [str(LANGUAGE), op, repr(value), *(sorted(parts) if op in COMMUTATIVE else parts)]
        digest = hashlib.sha256("\0".join(meaning).encode()).hexdigest()
        if digest not in self.nodes:
            number = len(self.nodes)
            flags = per, condition, rollout, loss, gradient, spelled
            self.nodes[digest] = Node(number, op, args, value, *flags, digest, place)
        return self.nodes[digest]

    def number(self, value: float, place: Place) -> Node:
        return self.add("number", (), place, value=float(value))
