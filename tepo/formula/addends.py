"""Parts of the sum J, for its metrics: the policy term, penalties before their coefficients, and clips."""

from dataclasses import dataclass

from tepo.formula.build import Builder
from tepo.formula.graph import Node, below
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
    """The policy term, which is all that reads the value handed over, with the constants; then the rest of J, one by
    one."""
    policy, others, constant = list[tuple[float, Node]](), list[tuple[float, Node]](), 0.0
    for times, node in _parts(root):
        factor, rest = factored(node, builder)
        if rest is None:
            constant += times * factor
        else:
            (policy if HANDED in _read(node) else others).append((times, node))
    if not policy:  # the value handed over acts through conditions alone
        policy, others = others, []
    first: Node | None = None
    for times, node in [*policy, *([(1.0, builder.number(constant, root.place))] if constant else [])]:
        size = node if abs(times) == 1 else builder.operator("*", builder.number(abs(times), node.place), node)
        if first is None:
            first = size if times > 0 else builder.operator("neg", size)
        else:
            first = builder.operator("+" if times > 0 else "-", first, size)
    assert first is not None  # J has a gradient, and so a part that is no number
    terms = [Addend(1.0, first, "actor/pg_loss")]
    for times, node in others:
        factor, rest = factored(node, builder)
        if rest is not None:
            terms.append(Addend(times * factor, rest, _metric(rest, kl)))
    return terms


def clips(policy: Node, weight: Node | None) -> list[Clip]:
    """The clips of the policy term; one within the weight `v` holds no ratio."""
    nodes = _down(policy, {weight.number} if weight else set())
    minima = [node for node in nodes if node.op == "min"]
    policy_clips = []
    for node in nodes:
        if node.op == "clip" and node.args[0].loss:
            sides = [(outer, [part for part in outer.args if node in part.below()]) for outer in minima]
            outer, side = next(((outer, parts[0]) for outer, parts in sides if len(parts) == 1), (None, None))
            others = tuple(part for part in outer.args if part is not side) if outer else ()
            policy_clips.append(Clip(node.args[0], node, side, others))
    return policy_clips


_SUMS, _PRODUCTS = ("+", "-", "neg"), ("*", "/", "number")


def _parts(root: Node) -> list[tuple[float, Node]]:
    """What a sum adds up, each node once with how many times it does, from left to right."""
    nodes = below([root], {node.number for node in root.below() if node.op not in _SUMS})
    times = dict.fromkeys((node.number for node in nodes), 0.0) | {root.number: 1.0}
    for node in reversed(nodes):  # a sum before what it is made of
        for place, part in enumerate(node.args if node.op in _SUMS else ()):
            minus = node.op == "neg" or (node.op == "-" and place == 1)
            times[part.number] += -times[node.number] if minus else times[node.number]
    return [(times[node.number], node) for node in nodes if node.op not in _SUMS]


def factored(root: Node, builder: Builder) -> tuple[float, Node | None]:
    """A node as a number times the rest; None for nothing but a number."""
    factors: dict[int, tuple[float, Node | None]] = {}
    for node in below([root], {node.number for node in root.below() if node.op not in _PRODUCTS}):
        factors[node.number] = 1.0, node
        if node.op == "number":
            factors[node.number] = float(node.value or 0), None
        elif node.op == "/":
            factor, rest = factors[node.args[0].number]
            if rest:
                factors[node.number] = factor, builder.operator("/", rest, node.args[1])
        elif node.op == "*":
            (first, left), (second, right) = (factors[part.number] for part in node.args)
            factors[node.number] = (
                first * second,
                builder.operator("*", left, right) if left and right else left or right,
            )
    return factors[root.number]


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
    nodes: dict[int, Node] = {}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        stops = node.condition or node.number in leaves or node.stage
        if node.number not in nodes and node.number not in leaves:
            nodes[node.number] = node
            waiting += () if stops else node.args
    return list(nodes.values())
