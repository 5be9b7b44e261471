"""Equations of methods as MathML, which browsers set without a script or a network."""

import re
from collections.abc import Sequence
from typing import Any

from latex2mathml.converter import convert
from markupsafe import Markup, escape

from tepo.formula.row import BASELINE, Row, changed_lines
from tepo.formula.typeset import At, Writer, latex_lines, number, read_constants
from tepo.reporting.colours import Look
from tepo.reporting.tables.html_table import swatch

_ARXIV = re.compile(r"\b\d{4}\.\d{5}\b")
_LINK = r'<a href="https://arxiv.org/abs/\g<0>">\g<0></a>'


def _method(label: str, look: Look | None, row: Row, reference: tuple[str, Row] | None) -> dict[str, Any]:
    """A method as the page's template takes it: what it maximises, or the lines and constants in which it is not the
    reference (its label and row); then all of its lines, and words on signs and constants."""
    lines, remarks = latex_lines(row)
    # alignment is not needed in lines of their own, and a browser breaks none
    equations = [_mathml(re.sub(r"\\\\ &\\qquad", " ", line).replace("&=", "=")) for line in lines]
    changed = changed_lines(row, reference[1]) if reference else {}
    names = ["J", *(name for name in row.formula.nodes if name != "J")]  # signs that are defined stand behind them
    flags = [name in changed or (name == "J" and "average" in changed) for name in names]
    formula_names = {*row.formula.nodes, "average"}  # an average stands in front of J
    writer, constants = Writer(row.formula.nodes), read_constants(row)
    settings = [
        _mathml(f"{writer.symbol(name, At())} = {number(constants[name].value)}", "inline")
        if name in constants
        else here
        for name, (here, _) in changed.items()
        if here and name not in formula_names
    ]
    # what stands between dollars is mathematics
    words = Markup("").join(
        _mathml(part, "inline") if place % 2 else escape(part)
        for place, part in enumerate(", ".join(remarks).split("$"))
    )
    return {
        "label": label,
        "swatch": Markup(swatch(look, row.name)),
        "about": Markup(_ARXIV.sub(_LINK, str(escape(row.about)))),
        "departs": row.departs,
        "unlike": reference[0] if reference else "",
        "shown": [line for line, flag in zip(equations, flags, strict=False) if flag] if reference else equations,
        "settings": settings,
        "lines": equations if reference else [],
        "said": words,
    }


def methods(rows: Sequence[tuple[str, Look | None, Row]], baseline: str = "") -> list[dict[str, Any]]:
    """Methods of a page, each formula once, under the label of the first row that has it. One is shown whole, and the
    others by what tells them apart from it: the baseline (its label), else GRPO/DAPO, else the first."""
    first_rows: dict[str, tuple[str, Look | None, Row]] = {}
    for label, look, row in rows:
        first_rows.setdefault(row.formula.digest, (label, look, row))
    entries = sorted(first_rows.values(), key=lambda entry: (entry[0] != baseline, entry[2].name != BASELINE))
    whole = entries[0] if entries else None
    return [
        _method(*entry, None if whole is None or entry is whole else (whole[0], whole[2]))
        for entry in first_rows.values()
    ]


def _mathml(latex: str, display: str = "block") -> Markup:
    return Markup(convert(latex.replace(r"\\[1ex]", r"\\"), display=display))  # the room between lines is TeX's
