"""Tables 1-4 of the TEPO paper (arXiv 2604.12736) as printed, cell for cell, including its errors
(`examples/paper_arithmetic.py` lists them).

One CSV per table beside this file. `kind` is `row` (a measurement), `mean` (a mean over seeds) or `delta_vs_grpo_dapo`
(a difference as printed, not recomputed). Percent. An empty cell is a dash in the paper.
"""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tepo.common.errors import UserError, unknown_name

PAPER = "TEPO, arXiv 2604.12736"
TABLES = ("table1", "table2", "table3", "table4")

PAPER_BENCHMARKS = {
    "aime24": "AIME24",
    "aime25": "AIME25",
    "amc": "AMC",
    "math500": "MATH-500",
    "omni_math": "OMNI-MATH",
    "olympiadbench": "OlympiadBench",
    "minerva": "Minerva",
}
"""Column keys and names as printed, in the paper's order."""


@dataclass(frozen=True)
class PaperRow:
    """A printed row. scores: benchmark key -> percent, None for a dash. average: the printed "Avg." """

    table: str
    panel: str
    model: str
    kind: str
    method: str
    steps: str
    seed: str
    label: str
    scores: dict[str, float | None]
    average: float

    @property
    def complete(self) -> bool:
        return all(score is not None for score in self.scores.values())


@cache
def load_table(table: str) -> tuple[PaperRow, ...]:
    """The rows of a printed table in the paper's order. Raises UserError for an unknown table."""
    if table not in TABLES:
        raise unknown_name("paper table", table, TABLES)
    with (Path(__file__).parent / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return tuple(
            PaperRow(
                **{key: line[key] for key in ("table", "panel", "model", "kind", "method", "steps", "seed", "label")},
                scores={key: float(line[key]) if line[key] else None for key in PAPER_BENCHMARKS},
                average=float(line["avg"]),
            )
            for line in csv.DictReader(file)
        )


def all_rows(kind: str = "row") -> tuple[PaperRow, ...]:
    """Rows of one kind of all four tables, in the paper's order (rows printed in several tables appear several
    times)."""
    return tuple(row for table in TABLES for row in load_table(table) if row.kind == kind)


def printed_gains(table: str = "table1", model: str = "Qwen2.5-7B") -> str:
    """The printed averages of a table's methods above its GRPO/DAPO, in words, the largest first."""
    rows = [row for row in load_table(table) if row.model == model and row.kind == "row" and row.method != "base"]
    baseline = next(row for row in rows if row.method == "grpo_dapo")
    gains = {row.label.removeprefix("w. "): row.average - baseline.average for row in rows if row is not baseline}
    gains_text = ", ".join(f"{name} {gain:+.2f}" for name, gain in sorted(gains.items(), key=lambda pair: -pair[1]))
    return f"the paper's own gains over {baseline.label.removeprefix('w. ')} (Table {table[-1]}, {model}): {gains_text}"


@dataclass(frozen=True)
class RowKey:
    """Key of a printed row. `panel`, `steps` and `seed` are needed only where the rest leaves several."""

    table: str
    method: str
    model: str = "Qwen2.5-7B"
    panel: str | None = None
    steps: int | str | None = None
    seed: int | str | None = None
    kind: str = "row"


def reference_row(key: RowKey) -> PaperRow:
    """The printed row of a method.

    Raises UserError when there is no such row (with the nearest name) or more than one.
    """
    rows = [row for row in load_table(key.table) if row.kind == key.kind]
    for field in ("model", "method", "panel", "steps", "seed"):
        choice = getattr(key, field)
        if choice is None:
            continue
        matching = [row for row in rows if getattr(row, field) == str(choice)]
        if not matching:
            raise unknown_name(
                f"{field} of {key.table}",
                str(choice),
                {getattr(row, field) or "(none)" for row in rows},
                where=f"reference row {key.table}/{key.model}/{key.method}",
            )
        rows = matching
    if len({(tuple(row.scores.items()), row.average) for row in rows}) > 1:
        raise UserError(
            f"{len(rows)} rows of {key.table} fit {key.model}/{key.method}",
            where="reference row",
            fix="give panel, steps or seed: "
            + "; ".join(f"panel={row.panel or '-'} steps={row.steps or '-'} seed={row.seed or '-'}" for row in rows),
        )
    return rows[0]
