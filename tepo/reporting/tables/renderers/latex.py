"""Tables in LaTeX (booktabs): a complete document that compiles by itself; the `tabular` inside can be pasted into a
paper."""

from tepo.reporting.tables.cells import Markup
from tepo.reporting.tables.table import Block, Kind, Table

_PREAMBLE = r"""\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage[paperwidth=38cm,paperheight=30cm,margin=1cm]{geometry}
\usepackage{booktabs}
\pagestyle{empty}
\setlength{\parindent}{0pt}
\begin{document}
\small
"""
_SPECIAL = {
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


def escape(text: str) -> str:
    """Plain text as LaTeX."""
    return "".join(_SPECIAL.get(character, character) for character in text)


_MARKUP = Markup(escape, r"\textbf{%s}", r"\underline{%s}", r"\,{\scriptsize %s}")


def render(table: Table) -> str:
    """The document. Characters without a LaTeX form here are kept: `inputenc` says so if the font lacks them."""
    parts = [_PREAMBLE, rf"\textbf{{{escape(table.title)}}}\par\medskip" + "\n"]
    for block in table.blocks:
        parts += [rf"\textit{{{escape(block.title)}}}\par\smallskip", "\n", tabular(block), "\\par\\medskip\n"]
        parts += [_note(note) for note in block.notes]
    parts += [_note(note) for note in table.notes]
    return "".join(parts) + "\\end{document}\n"


def tabular(block: Block) -> str:
    """A block as a `tabular` (booktabs) for a paper, without its title."""
    align = "".join("l" if column.kind is Kind.TEXT else "r" for column in block.columns)
    lines = [rf"\begin{{tabular}}{{l{align}}}", r"\toprule"]
    lines += [" & ".join(["", *(escape(column.title) for column in block.columns)]) + r" \\"]
    for section, rows in _MARKUP.lines(block):
        lines.append(r"\midrule")
        if section:
            lines.append(rf"\multicolumn{{{len(block.columns) + 1}}}{{l}}{{\textit{{{section}}}}} \\")
        lines += [" & ".join(cells) + r" \\" for cells in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _note(text: str) -> str:
    return rf"{{\footnotesize {escape(text)}\par}}" + "\n"
