"""The tables of kinds, of options and of rows in docs/objectives.md, from the code and the YAML files:

    python -m tests.unit.objectives.tables

writes them into the page. What an axis decides is written there by hand; rows keep their order, new ones come last.
"""

import re
from pathlib import Path

from tepo.objectives import names
from tepo.objectives.kind_options import options_of, to_markdown
from tepo.objectives.loading import AXES, text

PAGE = Path(__file__).parents[3] / "docs" / "objectives.md"
_ROWS = re.compile(r"(?<=\| name \| in one line \|\n\|---\|---\|\n)(?:\| .*\n)+")


def with_tables(page: str) -> str:
    """The page with its tables as they should be."""
    for axis, (_, kinds, _) in AXES.items():
        page = re.sub(rf"^(\| `{axis}`.*? \| )[^|]*( \| )", rf"\g<1>{', '.join(kinds)}\g<2>", page, flags=re.MULTILINE)
    before, _, rest = page.partition("### The kinds of ")
    tables = "\n".join(to_markdown(options_of(axis)) for axis in AXES)
    page = before + tables + rest[rest.index("\n## ") :]
    listed = re.findall(r"^\| `(\w+)`", _ROWS.search(page)[0], re.MULTILINE)  # type: ignore[index]
    order = [name for name in listed if name in names()] + [name for name in names() if name not in listed]
    rows = "".join(f"| `{name}` | {text(name).splitlines()[0].lstrip('# ')} |\n" for name in order)
    return _ROWS.sub(lambda _: rows, page)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
