"""The audit on one screen."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tepo.reporting.paper.audit import TOLERANCE, WEIGHTS, Audit, average
from tepo.reporting.paper.audit_claims import SHORT, SIZES
from tepo.reporting.paper.reference import PAPER, PAPER_BENCHMARKS, RowKey, load_table, reference_row

_PER_PROBLEM = {"aime24": 32, "aime25": 32, "amc": 32}


def render(audit: Audit, every_row: bool = False) -> RenderableType:
    """Weights, averages that do not follow (all of them with `every_row`), then differences and claims that do not
    follow."""
    total = len(audit.averages)
    parts: list[RenderableType] = [
        Text(f"What follows from the paper's own tables ({PAPER})", style="bold"),
        *_weights(),
    ]
    parts.append(
        Text(
            f"\n{audit.following} of {total} distinct complete rows have an Avg. that follows from their columns "
            f"within {TOLERANCE}. Not following:",
            style="bold",
        )
    )
    parts.append(_averages(audit, every_row))
    parts.append(
        Text(
            f"\n{audit.checked - len(audit.findings)} of {audit.checked} printed differences, "
            "ranks and statements follow. Not following:",
            style="bold",
        )
    )
    table = _grid("", "where", "printed", "by the tables")
    for finding in audit.findings:
        table.add_row(finding.code, finding.where, _minus(finding.printed), _minus(finding.recomputed))
    parts.append(table)
    return Group(*parts)


def _weights() -> list[RenderableType]:
    row = reference_row(RowKey("table1", method="tepo"))
    dashed = [row for row in load_table("table2") if not row.complete]
    named = ", ".join(
        f"{PAPER_BENCHMARKS[key]} {weight}{f' ({weight // _PER_PROBLEM[key]} x 32)' if key in _PER_PROBLEM else ''}"
        for key, weight in WEIGHTS.items()
    )
    lines = [
        f"Avg. is the mean over samples: {named}; together {sum(WEIGHTS.values())}.",
        SIZES,
        (
            f"Example: TEPO, Qwen2.5-7B: {average(row.scores):.2f} computed, {row.average:.2f} printed; "
            f"the plain mean of its seven columns is {sum(v or 0 for v in row.scores.values()) / 7:.2f}."
        ),
        (
            "Rows with dashes fit if a dash counts as 0: "
            f"{', '.join(f'{average(row.scores):.2f} ({row.average:.2f} printed)' for row in dashed)}."
        ),
    ]
    return [Padding(Text(line), (0, 0, 0, 1)) for line in lines]


def _averages(audit: Audit, every_row: bool) -> Table:
    table = _grid("table", "model", "row", right=("printed", "by columns", "off by"))
    for check in audit.averages:
        if every_row or not check.follows:
            row = check.row
            table.add_row(
                row.table[-1] + row.panel,
                SHORT.get(row.model, row.model),
                row.label.split(" (leads")[0],
                f"{row.average:.2f}",
                f"{check.recomputed:.2f}",
                _minus(f"{round(check.difference, 2) + 0.0:+.2f}"),  # 0.00, not -0.00
                style="" if check.follows or not every_row else "bold",
            )
    return table


def _grid(*left: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=True, header_style="dim")
    for name in (*left, *right):
        table.add_column(name, justify="right" if name in right else "left")
    return table


def _minus(text: str) -> str:
    """Signs as true minus signs; hyphens in names stay."""
    words = (f"−{word[1:]}" if word[:1] == "-" and word[1:2].isdigit() else word for word in text.split(" "))
    return " ".join(words)
