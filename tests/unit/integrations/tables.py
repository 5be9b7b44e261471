"""The table of rows and trainers in docs/trainers.md, from running each row in each trainer:

    python -m tests.unit.integrations.tables

writes it into the page. TRL and verl must be installed."""

import re
import tempfile
from pathlib import Path

from tepo.objectives import names

PAGE = Path(__file__).parents[3] / "docs" / "trainers.md"
_ROWS = re.compile(r"(?<=\| rows \| TRL \| verl \| prime-rl \|\n\|---\|---\|---\|---\|\n)(?:\| .*\n)*")


def cells_of(page: str) -> dict[str, tuple[str, ...]]:
    found = _ROWS.search(page)
    assert found is not None, "docs/trainers.md has no table"
    lines = [re.split(r"(?<!\\)\|", line.strip("|")) for line in found[0].splitlines()]
    return {
        name: tuple(cell.strip().replace("\\|", "|") for cell in cells)
        for listed, *cells in lines
        for name in re.findall(r"`(\w+)`", listed)
    }


def with_cells(page: str, cells: dict[str, tuple[str, ...]]) -> str:
    """The page with another table; rows with the same cells share a line."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for name, row in cells.items():
        lines.setdefault(row, []).append(f"`{name}`")
    escaped = {tuple(cell.replace("|", "\\|") for cell in row): same for row, same in lines.items()}
    rows = "".join(f"| {', '.join(same)} | {' | '.join(row)} |\n" for row, same in escaped.items())
    return _ROWS.sub(lambda _: rows, page, count=1)


def main() -> None:
    from tests.integration.test_trainer_cells import outcome, run_prime_rl, run_trl, run_verl

    with tempfile.TemporaryDirectory() as folder:
        runs = (run_trl(Path(folder)), run_verl, run_prime_rl)
        cells = {name: tuple(outcome(name, run) for run in runs) for name in names()}
    PAGE.write_text(with_cells(PAGE.read_text(), cells))


if __name__ == "__main__":
    main()
