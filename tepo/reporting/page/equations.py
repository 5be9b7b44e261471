"""Equations of methods as MathML, which browsers set without a script or a network."""

import re
from collections.abc import Sequence
from typing import Any

from latex2mathml.converter import convert
from markupsafe import Markup, escape

from tepo.formula.row import Row
from tepo.formula.typeset import latex_lines
from tepo.reporting.colours import Look
from tepo.reporting.tables.html_table import swatch


def _method(label: str, look: Look | None, row: Row) -> dict[str, Any]:
    """A method as the page's template takes it: what is maximised, the lines that it is made of, and words on signs and
    constants."""
    lines, said = latex_lines(row)
    # alignment is not needed in lines of their own, and a browser breaks none
    first, *others = (_mathml(re.sub(r"\\\\ &\\qquad", " ", line).replace("&=", "=")) for line in lines)
    # what stands between dollars is mathematics
    words = Markup("").join(
        _mathml(part, "inline") if place % 2 else escape(part) for place, part in enumerate(", ".join(said).split("$"))
    )
    made = {"label": label, "swatch": Markup(swatch(look, row.name)), "about": row.about, "departs": row.departs}
    return made | {"objective": first, "lines": others, "said": words}


def methods(rows: Sequence[tuple[str, Look | None, Row]]) -> list[dict[str, Any]]:
    """Methods of a page, each formula once, under the label of the first row that has it."""
    known: dict[str, tuple[str, Look | None, Row]] = {}
    for label, look, row in rows:
        known.setdefault(row.formula.digest, (label, look, row))
    return [_method(*one) for one in known.values()]


def _mathml(latex: str, display: str = "block") -> Markup:
    return Markup(convert(latex, display=display))
