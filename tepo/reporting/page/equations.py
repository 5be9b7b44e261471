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
    lines, remarks = latex_lines(row)
    changed = changed_lines(row, load_row(BASELINE))
    # alignment is not needed in lines of their own, and a browser breaks none
    equations = [_mathml(re.sub(r"\\\\ &\\qquad", " ", line).replace("&=", "=")) for line in lines]
    own_flags = [
        name in changed for name in row.formula.nodes if name != "J"
    ]  # behind J, and before signs that are defined
    own_flags += [False] * (len(equations) - 1 - len(own_flags))
    formula_names = {*row.formula.nodes, "average"}  # an average stands in front of J
    settings = [here for name, (here, _) in changed.items() if here and name not in formula_names]
    # what stands between dollars is mathematics
    words = Markup("").join(
        _mathml(part, "inline") if place % 2 else escape(part)
        for place, part in enumerate(", ".join(remarks).split("$"))
    )
    return {
        "label": label,
        "swatch": Markup(swatch(look, row.name)),
        "about": row.about,
        "departs": row.departs,
        "objective": equations[0],
        "changed": [line for line, flag in zip(equations[1:], own_flags, strict=True) if flag],
        "settings": ", ".join(settings),
        "lines": [line for line, flag in zip(equations[1:], own_flags, strict=True) if not flag],
        "said": words,
    }


def methods(rows: Sequence[tuple[str, Look | None, Row]]) -> list[dict[str, Any]]:
    """Methods of a page, each formula once, under the label of the first row that has it."""
    first_rows: dict[str, tuple[str, Look | None, Row]] = {}
    for label, look, row in rows:
        first_rows.setdefault(row.formula.digest, (label, look, row))
    return [_method(*entry) for entry in first_rows.values()]


def _mathml(latex: str, display: str = "block") -> Markup:
    return Markup(convert(latex, display=display))
