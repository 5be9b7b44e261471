"""The equations of a method as LaTeX lines and a sentence about their signs, from its formula."""

import re

from tepo.formula.language import AVERAGES, GROUPS
from tepo.formula.row import Constant, Row
from tepo.formula.typeset import BIG, DEFINED, SAID, At, Writer, number

_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
SUMS = {  # those of an average, in text and in LaTeX
    "tokens": ("1/N Σ_i Σ_t", r"\frac{1}{N} \sum_{i} \sum_{t}"),
    "responses": ("1/B Σ_i 1/T_i Σ_t", r"\frac{1}{B} \sum_{i} \frac{1}{T_{i}} \sum_{t}"),
    "sums": ("1/B Σ_i Σ_t", r"\frac{1}{B} \sum_{i} \sum_{t}"),
    "budget": ("1/(B L) Σ_i Σ_t", r"\frac{1}{B L} \sum_{i} \sum_{t}"),
    GROUPS: ("mean over groups of 1/N_g Σ_i Σ_t", r"\operatorname{mean}_{g} \frac{1}{N_{g}} \sum_{i \in g} \sum_{t}"),
}


def equation(row: Row) -> list[str]:
    """The lines of a row that are read, J with its average first: a cell of a table of methods."""
    sums = SUMS[row.average][0] if row.average in SUMS else f"Σ_i Σ_t ({row.average})"
    lines = {name: " ".join(row.lines[name].split()) for name in row.formula.nodes}
    return [f"J = {sums} [ {lines.pop('J')} ]", *(f"{name} = {text}" for name, text in lines.items())]


def words(row: Row) -> list[str]:
    """Names that the lines, the average and the selection of a row read, in their order."""
    average = AVERAGES.get(row.average, row.average)
    return list(dict.fromkeys(_WORD.findall(" ".join([*equation(row), average, row.keep]))))


def read_constants(row: Row) -> dict[str, Constant]:
    """The constants that are read, in their order."""
    return {name: row.constants[name] for name in words(row) if name in row.constants}


def latex_lines(row: Row) -> tuple[list[str], list[str]]:
    """The equations, J first, `&` before each sign, and what is to be said of their signs, a part each, constants
    last."""
    nodes = row.formula.nodes
    writer = Writer(nodes)
    average = writer.expression(row.average, At("i", "t"), BIG) if row.average not in SUMS else ""
    sums = rf"\sum_{{i}} \sum_{{t}} {average}" if average else SUMS[row.average][1]
    lines = [writer.line("J", row.lines["J"], sums)]
    lines += [writer.line(name, row.lines[name]) for name in nodes if name != "J"]
    lines += [line for sign, line in DEFINED.items() if any(sign in text for text in lines)]
    said = [words for sign, words in SAID.items() if any(sign in line for line in lines)]
    said += [f"${writer.symbol(name, At())} = {number(one.value)}$" for name, one in read_constants(row).items()]
    said += ["responses that were cut at the limit are left out"] * bool(row.keep)
    return lines, said
