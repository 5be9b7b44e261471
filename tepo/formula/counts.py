"""Parts of a formula that are made of counts alone, such as T - 1: what they come to wherever the counts may be. No
tensors here."""

import math
import operator
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from tepo.formula.graph import Node
from tepo.formula.language import FOLDED, OPERATORS

Point = dict[str, float]
_OF_AVERAGE = ("N", "B", "T", "L")
_COUNTS = (*_OF_AVERAGE, "t", "finished")
_CHOICES = ("where", "min", "max", "clip")  # without a gradient they may leave out what is infinite


def _quotient(above: float, below: float) -> float:
    """As where numbers are computed: 0/0 is 0, as no gradient flows into a count."""
    if below:
        return above / below
    return math.copysign(math.inf, above) if above else 0.0


_COMPUTED: dict[str, Callable[..., Any]] = {
    **OPERATORS,
    **FOLDED,
    "/": _quotient,
    "~": operator.not_,
    "where": lambda condition, then, other: then if condition else other,
    "log": lambda x: math.log(x) if x else -math.inf,
    "tokens": lambda x: x,
    "responses": lambda x: x,
}


@cache
def _points() -> tuple[Point, ...]:
    """Lengths, positions and sizes of mini-batches, at their ends and between."""
    points: list[Point] = []
    for limit in (1, 2, 8, 4096):
        for length in {1, 2, 3, 4, 5, 6, limit // 2, limit - 1, limit} & set(range(1, limit + 1)):
            for place in {1, 2, 3, length - 1, length} & set(range(1, length + 1)):
                for number in (1, 2, 3, 16):
                    for tokens in {length + number - 1, number * limit}:
                        points += [
                            {"N": tokens, "B": number, "T": length, "L": limit, "t": place, "finished": end}
                            for end in (0, 1)
                        ]
    return tuple(points)


@cache
def _points_of(names: tuple[str, ...], finished: bool) -> tuple[Point, ...]:
    """Points that differ in these counts. finished: responses that were cut are left out."""
    key = operator.itemgetter(*names) if names else bool
    return tuple({key(point): point for point in _points() if point["finished"] or not finished}.values())


def _counted(root: Node, names: tuple[str, ...] = _COUNTS) -> set[int]:
    """The numbers of the nodes that are made of these counts and of constants alone."""
    numbers = set[int]()
    for node in root.below():
        countable = node.op == "number" or (node.op == "given" and node.value in names) or node.op in _COMPUTED
        if countable and all(part.number in numbers for part in node.args):
            numbers.add(node.number)
    return numbers


def _values(node: Node, finished: bool = False) -> Iterator[tuple[float, Point]]:
    """What a node made of counts comes to at each point, with the counts that it reads. finished: responses that were
    cut are left out."""
    nodes = node.below()
    names = tuple(sorted({str(part.value) for part in nodes if part.op == "given"}))
    for point in _points_of(names, finished):
        values: dict[int, float] = {}
        for part in nodes:
            values[part.number] = _value(part, [values[below.number] for below in part.args], point)
        yield values[node.number], {name: point[name] for name in names}


def _where(point: Point) -> str:
    return " where " * bool(point) + ", ".join(f"{name} = {value:g}" for name, value in point.items())


def _value(node: Node, args: list[float], point: Point) -> float:
    if not args:
        return float(point[str(node.value)] if node.op == "given" else node.value or 0)
    if any(map(math.isnan, args)):
        return math.nan
    try:
        number = _COMPUTED[node.op](*args)
    except ZeroDivisionError:  # 0 to a power below 0
        return math.inf
    except (ValueError, OverflowError):
        return math.nan
    return math.nan if isinstance(number, complex) else float(number)


def check_weight(average: Node) -> None:
    """Raise UserError where the weight of a token is not made of N, B, T, L and constants, or is not above 0."""
    if average.number not in _counted(average, _OF_AVERAGE):
        raise average.place.error("an average reads N, B, T, L and constants alone", "such as 1/(B*sqrt(T))")
    for value, point in _values(average):
        if not 0 < value < math.inf:
            what = f"the weight of a token is {value:g}{_where(point)}"
            raise average.place.error(what, "a weight above 0, such as 1/N or 1/(B*T)")


def check_defined(root: Node, finished: bool) -> None:
    """Raise UserError where a part that is made of counts is no finite number, or divides as 0. finished: responses
    that were cut are left out."""
    counted = _counted(root)
    visits, waiting = set[tuple[int, bool]](), [(root, False)]
    while waiting:
        node, chosen = waiting.pop()
        if (node.number, chosen) in visits or (chosen and node.number in counted):
            continue
        visits.add((node.number, chosen))
        if node.number in counted:
            _check_values(node, math.isfinite, "{} is {:g}", finished)
            continue
        if node.op == "/" and node.args[1].number in counted:
            above = any(part.condition for part in node.args[0].below())  # which may be 0 there: 0/0 is 0
            if node.gradient or not (chosen or above):
                _check_values(node.args[1], bool, "a division by 0", finished)
        masks = node.op == "*" and any(part.condition for part in node.args)
        chosen = chosen or masks or node.condition or node.op in _CHOICES
        waiting += [(part, chosen) for part in node.args]


def _check_values(node: Node, holds: Callable[[float], bool], what: str, finished: bool) -> None:
    """Raise UserError for the first value of a node that does not hold."""
    for value, point in _values(node, finished):
        if not holds(value):
            text = node.place.text[node.place.start : node.place.end]
            fix = "a bound, such as max(T - 1, 1)"
            raise node.place.error(what.format(text, value) + _where(point), fix)
