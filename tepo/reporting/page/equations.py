"""Equations of methods as MathML, which browsers set without a script or a network."""

import re
from collections.abc import Sequence
from typing import Any

from latex2mathml.converter import convert
from markupsafe import Markup, escape

from tepo.formula.row import BASELINE, Row, changed_lines, load_row
from tepo.formula.typeset import latex_lines
from tepo.reporting.colours import Look
from tepo.reporting.tables.html_table import swatch


def _method(label: str, look: Look | None, row: Row) -> dict[str, Any]:
    """A method as the page's template takes it: what is maximised, the lines and constants that are not the baseline's,
    the other lines, and words on signs and constants."""
    lines, said = latex_lines(row)
    changed = changed_lines(row, load_row(BASELINE))
    # alignment is not needed in lines of their own, and a browser breaks none
    made = [_mathml(re.sub(r"\\\\ &\\qquad", " ", line).replace("&=", "=")) for line in lines]
    own = [name in changed for name in row.formula.nodes if name != "J"]  # behind J, and before signs that are defined
    own += [False] * (len(made) - 1 - len(own))
    shown = {*row.formula.nodes, "average"}  # an average stands in front of J
    settings = [here for name, (here, _) in changed.items() if here and name not in shown]
    # what stands between dollars is mathematics
    words = Markup("").join(
        _mathml(part, "inline") if place % 2 else escape(part) for place, part in enumerate(", ".join(said).split("$"))
    )
    return {
        "label": label,
        "swatch": Markup(swatch(look, row.name)),
        "about": row.about,
        "departs": row.departs,
        "objective": made[0],
        "changed": [line for line, mine in zip(made[1:], own, strict=True) if mine],
        "settings": ", ".join(settings),
        "lines": [line for line, mine in zip(made[1:], own, strict=True) if not mine],
        "said": words,
    }


def methods(rows: Sequence[tuple[str, Look | None, Row]]) -> list[dict[str, Any]]:
    """Methods of a page, each formula once, under the label of the first row that has it."""
    known: dict[str, tuple[str, Look | None, Row]] = {}
    for label, look, row in rows:
        known.setdefault(row.formula.digest, (label, look, row))
    return [_method(*one) for one in known.values()]


def _mathml(latex: str, display: str = "block") -> Markup:
    return Markup(convert(latex, display=display))
