"""The tables of docs/language.md and docs/methods.md, from the language itself and from the files of the methods:

    python -m tests.unit.objectives.formula_tables

writes them into the pages, each after the sentence below its heading."""

import re
from collections.abc import Sequence
from pathlib import Path

from tepo.formula.language import AVERAGES, FUNCTIONS, GIVEN, GROUPS, WORDS
from tepo.formula.row import IDEAS, Row, changed_lines, load_row, names
from tepo.formula.typeset import SUMS, equation
from tepo.objectives import load_objective
from tepo.objectives.explain import coefficients
from tepo.reporting.charts.coefficients import coefficient_panels
from tepo.reporting.charts.style import Chart, svg
from tests.unit.integrations.tables import PAGE as TRAINERS
from tests.unit.integrations.tables import cells_of

DOCS = Path(__file__).parents[3] / "docs"
PICTURE = DOCS / "formula-coefficients.svg"
FAMILIES = (
    *("grpo_dapo", "gspo", "gmpo", "sapo", "cispo", "reinforce", "topr", "dro"),
    *("kimi_k2_5", "glm_5", "dppo_tv", "drpo", "mhpo", "maspo", "dgpo", "vespo"),
)


def table(head: str, *rows: str) -> str:
    return "\n".join([head, re.sub(r"[^|]+", "---", head), *rows]) + "\n"


def methods() -> str:
    """A table for each idea: method, year, paper, what it changes of the row that it is like (without one, its
    equation), and the trainers that take it."""
    rows, cells = [load_row(name) for name in names()], cells_of(TRAINERS.read_text())
    found = []
    for idea, said in IDEAS.items():
        lines = []
        for row in sorted((row for row in rows if row.idea == idea), key=lambda row: (row.year or 0, row.name)):
            title = " ".join(row.about.split()).partition(": ")[0].rstrip(".")
            lines.append(f"| `{row.name}` | {row.year} | {title} | {_changes(row)} | {_trainers(cells[row.name])} |")
        head = "| objective | year | what | equation | trainers |"
        found.append(f"### {idea.capitalize()}: {said}\n\n{table(head, *lines)}")
    return "\n".join(found)


def _changes(row: Row) -> str:
    lines = [here for here, _ in changed_lines(row, row.base).values() if here] if row.base else equation(row)
    words = ", ".join(f"`{line}`" for line in lines).replace("|", "\\|")
    return f"`{row.like}` with {words}" if row.like else words


def _trainers(cells: Sequence[str]) -> str:
    """Those that take the row as it is; a star where a setting is needed."""
    taken = {"TRL": cells[0], "verl": cells[1], "prime-rl": cells[2]}
    said = [name + "*" * (cell != "exact") for name, cell in taken.items() if not cell.startswith("no")]
    return ", ".join(said) or "–"


def takes(name: str) -> str:
    """What the arguments of a function are."""
    words = {
        "each": "token or response",
        "all": "token or responses(…)",
        "number": "constant",
        "share": "constant from 0 to 1",
        "named": "named reward",
        "several": "any but a number",
        "unnamed": "any but a named reward",
    }
    ends = {"?": " or nothing", "*": " …"}
    plain = [(one.rstrip("?*"), ends.get(one[-1], "")) for one in FUNCTIONS[name].takes]
    return ", ".join(words.get(word, word) + end for word, end in plain)


def tables() -> dict[Path, dict[str, str]]:
    """Page -> heading -> what stands in its section after the first paragraph."""
    per = {word: said.removeprefix("one per ") for word, said in WORDS.items()} | {"": "–"}
    language = {
        "The averages": table(
            "| average | weight of a token | J is |",
            *(
                f"| `{name}` | {text and f'`{text}`'} | {SUMS[name][0]} |"
                for name, text in (AVERAGES | {GROUPS: ""}).items()
            ),
        ),
        "The names": table(
            "| name | one per | what | in | gradient |",
            *(
                f"| `{name}` | {per[one.per]} | {one.doc} | {one.stage or 'anywhere'} | {'yes' * one.gradient} |"
                for name, one in GIVEN.items()
            ),
        ),
        "The functions": table(
            "| function | takes | what |",
            *(f"| `{name}` | {takes(name)} | {one.doc} |" for name, one in FUNCTIONS.items()),
        ),
    }
    return {DOCS / "language.md": language, DOCS / "methods.md": {"All methods": methods()}}


def with_tables(page: str, made_for: dict[str, str]) -> str:
    """The page with its tables as they should be."""
    for heading, made in made_for.items():
        section = re.compile(rf"(?<=^## {heading}\n\n)(.+?\n)(?:\n.*?)?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
        page, count = section.subn(lambda found, made=made: f"{found[1]}\n{made}\n", page)
        assert count == 1, heading
    return page.rstrip("\n") + "\n"


def picture() -> Chart:
    """The coefficients of one row of each family."""
    return coefficient_panels({name: coefficients(load_objective(name)) for name in FAMILIES})


if __name__ == "__main__":
    for file, made in tables().items():
        file.write_text(with_tables(file.read_text(), made))
    PICTURE.write_text(svg(picture()))
