"""The table of rows and trainers in docs/trainers.md, from the code and the YAML files:

    python -m tests.unit.integrations.tables

writes it into the page."""

import re
from pathlib import Path

from tepo.integrations.peers import PRIME_RL, TRL, VERL, cell
from tepo.objectives import load_objective, names

PAGE = Path(__file__).parents[3] / "docs" / "trainers.md"
_ROWS = re.compile(r"(?<=\| row \| TRL \| verl \| prime-rl \|\n\|---\|---\|---\|---\|\n)(?:\| .*\n)*")


def with_table(page: str) -> str:
    """The page with its table as it should be."""
    objectives = [load_objective(name) for name in names()]
    lines = [[f"`{row.name}`", *(cell(row, peer) for peer in (TRL, VERL, PRIME_RL))] for row in objectives]
    rows = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return _ROWS.sub(lambda _: rows, page, count=1)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
