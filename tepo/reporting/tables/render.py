"""A table as text: terminal (`terminal`), Markdown, LaTeX (booktabs), CSV, HTML (`html_table`)."""

import csv
import io
import re
from typing import TYPE_CHECKING

from tepo.common.errors import unknown_name
from tepo.common.text import spelt
from tepo.reporting.tables import html_table, terminal
from tepo.reporting.tables.cells import Markup
from tepo.reporting.tables.table import Kind, Table, TableBlock

if TYPE_CHECKING:
    from rich.console import RenderableType

FORMATS = ("terminal", "markdown", "latex", "csv", "html")
_CSV = ("block", "row", "label", "column", "title", "value", "low", "high", "n", "text")
_SPREADSHEET = re.compile(r"[=+\-@＝＋－＠\t\n]")  # where a spreadsheet takes a text that begins so for a formula
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", re.IGNORECASE)
_MARKDOWN = str.maketrans({character: "\\" + character for character in "\\`*_[]<>|"})
_LATEX = str.maketrans(
    {
        **{character: "\\" + character for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "Δ": r"$\Delta$",
        "β": r"$\beta$",
        "α": r"$\alpha$",
        "κ": r"$\kappa$",
        "∧": r"$\wedge$",
        "∨": r"$\vee$",
        "±": r"$\pm$",
        "†": r"$\dagger$",
        "−": r"$-$",
        "–": "--",
        "×": r"$\times$",
        "≥": r"$\geq$",
        "≤": r"$\leq$",
        "|": r"\textbar{}",
        "[": "{[}",  # after a line break a bracket would be its optional argument
    }
)
_PREAMBLE = r"""\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage[paperwidth=38cm,paperheight=30cm,margin=1cm]{geometry}
\usepackage{booktabs}
\pagestyle{empty}
\setlength{\parindent}{0pt}
\begin{document}
\small
"""


def check_format(format: str) -> None:
    """Raises UserError for a format that is none of FORMATS."""
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)


def render(table: Table, format: str = "terminal") -> "str | RenderableType":
    """The table in one of FORMATS: a rich renderable for "terminal", text otherwise.

    Raises UserError for another format.
    """
    check_format(format)
    written = {"markdown": markdown, "latex": latex, "csv": tidy_csv, "html": html_table.render}
    return terminal.render(table) if format == "terminal" else written[format](table)


def as_text(table: Table, format: str, width: int = 160) -> str:
    """`render`, with the terminal form drawn into plain text of that width (for files and pipes)."""
    return terminal.plain(table, width) if format == "terminal" else str(render(table, format))


def markdown_text(text: str) -> str:
    """Text whose characters mean nothing to Markdown."""
    return text.translate(_MARKDOWN)


def markdown(table: Table) -> str:
    """GitHub's flavour: best in bold, second underlined."""
    marks = Markup(markdown_text, "**%s**", "<u>%s</u>", " %s")
    lines = [f"## {markdown_text(table.title)}", ""]
    for block in table.blocks:
        align = [":--", *(":--" if column.kind is Kind.TEXT else "--:" for column in block.columns)]
        grid = [["", *(markdown_text(column.title) for column in block.columns)], align]
        grid += marks.rows(block)
        lines += [f"**{markdown_text(block.title)}**", "", *(f"| {' | '.join(cells)} |" for cells in grid), ""]
        if block.notes:
            lines += [*(f"- {markdown_text(note)}" for note in block.notes), ""]
    lines += [f"- {markdown_text(note)}" for note in table.notes]
    return "\n".join(lines).rstrip() + "\n"


def latex_text(text: str) -> str:
    """Plain text as LaTeX. Characters without a form here are kept: `inputenc` says so if the font lacks them."""
    return text.translate(_LATEX)


def latex(table: Table) -> str:
    """A document that compiles by itself."""

    def notes(texts: tuple[str, ...]) -> str:
        return "".join(rf"{{\footnotesize {latex_text(text)}\par}}" + "\n" for text in texts)

    parts = [_PREAMBLE, rf"\textbf{{{latex_text(table.title)}}}\par\medskip" + "\n"]
    for block in table.blocks:
        head = rf"\textit{{{latex_text(block.title)}}}\par\smallskip"
        parts += [f"{head}\n{tabular(block)}\\par\\medskip\n", notes(block.notes)]
    return "".join([*parts, notes(table.notes), "\\end{document}\n"])


def tabular(block: TableBlock) -> str:
    """A block as a `tabular` (booktabs) for a paper, without its title."""
    marks = Markup(latex_text, r"\textbf{%s}", r"\underline{%s}", r"\,{\scriptsize %s}")
    align = "".join("l" if column.kind is Kind.TEXT else "r" for column in block.columns)
    lines = [rf"\begin{{tabular}}{{l{align}}}", r"\toprule"]
    lines += [" & ".join(["", *(latex_text(column.title) for column in block.columns)]) + r" \\"]
    lines += [r"\midrule", *(" & ".join(cells) + r" \\" for cells in marks.rows(block))]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def tidy_csv(table: Table) -> str:
    """One line a cell for other programs, unrounded: percent or points; empty where nothing was measured.

    A text that a spreadsheet would take for a formula has an apostrophe before it, as OWASP recommends."""

    def quoted(text: str) -> str:
        text = spelt(text)
        return f"'{text}" if _SPREADSHEET.match(text) and not _NUMBER.fullmatch(text) else text

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV)
    for block, row, column, cell in table.cells():
        numbers = ("" if value is None else f"{value:.6g}" for value in (cell.mean, cell.low, cell.high))
        texts = block.title, row.key, row.label, column.key, column.title
        writer.writerow((*map(quoted, texts), *numbers, cell.n or "", quoted(cell.text)))
    return out.getvalue()
