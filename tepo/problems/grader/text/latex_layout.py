r"""LaTeX environments that only lay out: `aligned` and its kin, systems of equations in braces, arrays of one cell.
What is left of them is a list; matrices and definitions by cases keep their environment."""

import re

_LAID_OUT = r"align(?:ed|edat|at)?|gather(?:ed)?|split|equation|multline|eqnarray"
_ENVIRONMENT = re.compile(
    rf"(?P<brace>(?:\\left ?)?\\(?:\{{|lbrace) ?)?"
    rf"\\begin\{{(?P<name>(?:{_LAID_OUT})\*?|[dr]?cases|array)\}}(?P<columns>\{{[^{{}}]*\}}|\[[tbc]\])?"
    r"(?P<body>(?:(?!\\begin\{|\\end\{).)*)\\end\{(?P=name)\}(?(brace)(?: ?\\right ?\.)?)",
    re.DOTALL,
)
ROW = re.compile(r"\\\\(?:\[[^\]]*\])?")
_BARE_ROW = re.compile(r"\s*(?<!\\)\\\\(?=\s)\s*(?=\S)")
_CONTINUES = re.compile(r"\s*(?:=|<|>|\\(?:leq?|geq?|approx|equiv|implies|Rightarrow)(?![a-zA-Z]))")
_CONDITION = r"\\text ?\{ ?,? ?(?:if|for|when|whenever|where|otherwise|else)\b"
_STARTS = re.compile(rf"(?={_CONDITION})")
_RELATION_SIGN = re.compile(r"[=<>]|\\(?:leq?|geq?|neq?|in)(?![a-zA-Z])")


def flattened(text: str) -> str:
    r"""Layout as lists: `\begin{cases} x=1 \\ y=2 \end{cases}` is x=1, y=2;
    equations on lines of their own are a list too."""
    if "\\begin" in text:
        text = _ENVIRONMENT.sub(_flat, text)
    rows = [] if "\\begin" in text else _BARE_ROW.split(text)
    return ", ".join(rows) if len(rows) > 1 and all(_RELATION_SIGN.search(row) for row in rows) else text


def _flat(match: re.Match[str]) -> str:
    rows = [row for row in ROW.split(match["body"].replace("\\hline", "")) if row.strip(" &\n")]
    if match["name"] == "array" and not match["brace"]:
        return rows[0].strip() if len(rows) == 1 and "&" not in rows[0] else match.group()
    if match["name"] in ("cases", "dcases", "rcases", "array"):
        cases = [_case(row) for row in rows]
        if len(rows) > 1 and all(cases):
            written = " \\\\ ".join(f"{value} & {condition}" for value, condition in filter(None, cases))
            return f"\\begin{{cases}}{written}\\end{{cases}}"
        if match["brace"] and not all(_RELATION_SIGN.search(row) for row in rows):
            return match.group()
    joined = ""
    for row in (row.replace("&", " ").strip(" ,;\n") for row in rows):
        joined += (" " if _CONTINUES.match(row) else ", ") + row if joined else row
    return joined or " "


def _case(row: str) -> tuple[str, str] | None:
    """(value, condition) of one line of a definition by cases, None for an equation."""
    value, mark, condition = row.partition("&")
    if not mark:
        start = _STARTS.search(row)
        value, condition = (row[: start.start()], row[start.start() :]) if start else (row, "")
    value, condition = value.strip().rstrip(","), condition.replace("&", " ").strip(" ,;.\n")
    defined = value.strip() and condition and not condition.startswith(("=", "<", ">"))
    return (value.strip(), condition) if defined else None
