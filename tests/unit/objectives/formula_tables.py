"""The tables of docs/formula.md, from the language itself and from the files of the methods:

    python -m tests.unit.objectives.formula_tables

writes them into the page, each after the sentence below its heading."""

import re
from pathlib import Path

from tepo.formula.language import AVERAGES, FUNCTIONS, GIVEN, GROUPS, WORDS
from tepo.formula.row import changed_lines, load_row, names
from tepo.formula.typeset import SUMS, equation

PAGE = Path(__file__).parents[3] / "docs" / "formula.md"


def table(head: str, *rows: str) -> str:
    return "\n".join([head, re.sub(r"[^|]+", "---", head), *rows]) + "\n"


def methods() -> str:
    """Each method with its paper and what it changes of the row that it is like; without one, with its equation."""
    found = []
    for row in map(load_row, names()):
        title, like = (
            " ".join(row.about.split()).partition(": ")[0].rstrip("."),
            f", like `{row.like}`" * bool(row.like),
        )
        lines = [here for here, _ in changed_lines(row, row.base) if here] if row.base else equation(row)
        found.append(f"- **{row.name}**{like}: {title}. {', '.join(f'`{line}`' for line in lines)}\n")
    return "".join(found)


def takes(name: str) -> str:
    """What the arguments of a function are."""
    words = {"each": "token or response", "all": "token or responses(…)", "number": "constant", "named": "named reward"}
    ends = {"?": " or nothing", "*": " …"}
    plain = [(one.rstrip("?*"), ends.get(one[-1], "")) for one in FUNCTIONS[name].takes]
    return ", ".join(words.get(word, word) + end for word, end in plain)


def tables() -> dict[str, str]:
    """Heading -> what stands in its section after the first paragraph."""
    given = {name: (WORDS[one.per].removeprefix("one a "), one.stage or "anywhere") for name, one in GIVEN.items()}
    expressions = AVERAGES | {GROUPS: ""}
    return {
        "The averages": table(
            "| average | weight of a token | J is |",
            *(f"| `{name}` | {text and f'`{text}`'} | {SUMS[name][0]} |" for name, text in expressions.items()),
        ),
        "The names": table(
            "| name | one a | what | in | gradient |",
            *(
                f"| `{name}` | {per} | {GIVEN[name].doc} | {stage} | {'yes' * GIVEN[name].gradient} |"
                for name, (per, stage) in given.items()
            ),
        ),
        "The functions": table(
            "| function | takes | what |",
            *(f"| `{name}` | {takes(name)} | {one.doc} |" for name, one in FUNCTIONS.items()),
        ),
        "All methods": methods(),
    }


def with_tables(page: str) -> str:
    """The page with its tables as they should be."""
    for heading, made in tables().items():
        section = re.compile(rf"(?<=^## {heading}\n\n)(.+?\n)(?:\n.*?)?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
        page, count = section.subn(lambda found, made=made: f"{found[1]}\n{made}\n", page)
        assert count == 1, heading
    return page.rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
