"""Parts of the sum J, for its metrics: the policy term, penalties before their coefficients, and clips."""

from collections.abc import Iterator
from dataclasses import dataclass

from tepo.formula.build import Builder
from tepo.formula.graph import Node
from tepo.formula.language import HANDED


@dataclass(frozen=True)
class Addend:
    """coefficient * node in J."""

    coefficient: float
    node: Node
    metric: str  # the name of the node's total, negated for the policy term


@dataclass(frozen=True)
class Clip:
    """A clip of the policy term."""

    of: Node  # what is held
    held: Node  # the outcome
    side: Node | None  # the argument of the `min` around it that it is in; None without one
    others: tuple[Node, ...] = ()  # the arguments that it is not in

    @property
    def nodes(self) -> list[Node]:
        return [node for node in (self.of, self.held, self.side, *self.others) if node]


def addends(root: Node, builder: Builder, kl: Node | None) -> list[Addend]:
    """The policy term, which is all that reads the value handed over, and then the rest of J, one by one."""
    parts = list(_parts(root, 1.0))
    policy, others = list[tuple[float, Node]](), list[tuple[float, Node]]()
    for sign, node in parts:
        (policy if HANDED in _read(node) else others).append((sign, node))
    if not policy:  # the value handed over acts through conditions alone
        policy, others = parts, []
    first = policy[0][1] if policy[0][0] > 0 else builder.operator("neg", policy[0][1])
    for sign, node in policy[1:]:
        first = builder.operator("+" if sign > 0 else "-", first, node)
    found = [Addend(1.0, first, "actor/pg_loss")]
    for sign, node in others:
        factor, rest = factored(node, builder)
        if rest is not None:
            found.append(Addend(sign * factor, rest, _metric(rest, kl)))
    return found


def clips(policy: Node, weight: Node | None) -> list[Clip]:
    """The clips of the policy term; one within the weight `v` holds no ratio."""
    nodes = _down(policy, {weight.number} if weight else set())
    minima = [node for node in nodes if node.op == "min"]
    found = []
    for node in nodes:
        if node.op == "clip" and node.args[0].loss:
            sides = [(outer, [part for part in outer.args if node in part.below()]) for outer in minima]
            outer, side = next(((outer, parts[0]) for outer, parts in sides if len(parts) == 1), (None, None))
            others = tuple(part for part in outer.args if part is not side) if outer else ()
            found.append(Clip(node.args[0], node, side, others))
    return found


def _parts(node: Node, sign: float) -> Iterator[tuple[float, Node]]:
    """Addends of a sum, with signs."""
    if node.op in ("+", "-"):
        yield from _parts(node.args[0], sign)
        yield from _parts(node.args[1], sign if node.op == "+" else -sign)
    elif node.op == "neg":
        yield from _parts(node.args[0], -sign)
    else:
        yield sign, node


def factored(node: Node, builder: Builder) -> tuple[float, Node | None]:
    """A node as a number times the rest; None for nothing but a number."""
    if node.op == "number":
        return float(node.value or 0), None
    if node.op == "/":
        factor, rest = factored(node.args[0], builder)
        return (factor, builder.operator("/", rest, node.args[1])) if rest else (1.0, node)
    if node.op != "*":
        return 1.0, node
    (first, one), (second, other) = (factored(part, builder) for part in node.args)
    rest = builder.operator("*", one, other) if one and other else one or other
    return first * second, rest


def _metric(node: Node, kl: Node | None) -> str:
    parts = node.below()
    if kl is not None and kl in parts:
        return "actor/kl_loss"
    return "actor/entropy_loss" if any(part.value == "H" for part in parts) else "actor/penalty"


def _read(node: Node) -> set[str]:
    """Given names that a node is a number of, and not only a condition or a statistic of the mini-batch."""
    return {str(part.value) for part in _down(node, set()) if part.op == "given"}


def _down(root: Node, leaves: set[int]) -> list[Node]:
    """A node and what it is a number of, but for what is below the leaves."""
    found: dict[int, Node] = {}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        stops = node.condition or node.number in leaves or node.stage
        if node.number not in found and node.number not in leaves:
            found[node.number] = node
            waiting += () if stops else node.args
    return list(found.values())
