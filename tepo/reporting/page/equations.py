"""Equations of methods as MathML, which browsers set without a script or a network."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from latex2mathml.converter import convert
from markupsafe import Markup, escape

from tepo.formula.row import Row
from tepo.formula.typeset import latex_lines
from tepo.reporting.colours import Look
from tepo.reporting.tables.html_table import swatch


@dataclass(frozen=True)
class Method:
    """A method of the page. objective: to maximise. lines: what it is made of. said: of the signs and constants."""

    label: str
    swatch: Markup
    about: str
    objective: Markup
    lines: tuple[Markup, ...]
    said: Markup
    departs: tuple[str, ...]


def method(label: str, look: Look | None, row: Row) -> Method:
    """The equations of a row."""
    lines, said = latex_lines(row)
    # alignment is not needed in lines of their own, and a browser breaks none
    first, *others = (_mathml(re.sub(r"\\\\ &\\qquad", " ", line).replace("&=", "=")) for line in lines)
    # what stands between dollars is mathematics
    words = Markup("").join(
        _mathml(part, "inline") if place % 2 else escape(part) for place, part in enumerate(", ".join(said).split("$"))
    )
    mark = Markup(swatch(look, row.name))
    return Method(label, mark, row.about, first, tuple(others), words, tuple(row.departs))


def methods(rows: Sequence[tuple[str, Look | None, Row]]) -> list[Method]:
    """Methods of a page, each formula once, under the label of the first row that has it."""
    known: dict[str, tuple[str, Look | None, Row]] = {}
    for label, look, row in rows:
        known.setdefault(row.formula.digest, (label, look, row))
    return [method(*one) for one in known.values()]


def _mathml(latex: str, display: str = "block") -> Markup:
    return Markup(convert(latex, display=display))
