"""One family of verdicts over several tables, so that a comparison reads the same wherever it is shown."""

from collections.abc import Sequence
from dataclasses import replace

from tepo.evaluation.statistics.comparison import Difference, corrected
from tepo.reporting.tables.table import VERDICT, Block, Comparison, Table

Contrast = tuple[tuple[str, ...], ...]
_START = "Verdicts at 5%, Holm-corrected over "


def family_note(family: int, tables: Sequence[str] = ()) -> str:
    """Note on the comparisons that the verdicts of a table were corrected over: its own, or those of all these
    tables."""
    if not tables:
        return f"{_START}the comparisons of this table alone ({family})."
    return f"{_START}the {family} different comparisons of {', '.join(tables)}."


def one_family(tables: Sequence[Table]) -> list[Table]:
    """The tables with Holm's correction over every comparison of any of them.

    Two rows that are compared in several tables are one comparison: it counts once, and has one verdict. Rows are the
    same where the same runs were measured on the same benchmarks (`Row.measured`).
    """
    first: dict[Contrast, Difference] = {}
    for table in tables:
        for one in table.comparisons:
            if one.measured is not None:
                first.setdefault(_contrast(table, one), one.measured)
    family = dict(zip(first, corrected(list(first.values())), strict=True))
    named = [table.name for table in tables if table.comparisons]
    note = family_note(len(family), named if len(named) > 1 else ())
    return [_judged(table, {key: one.p_holm for key, one in family.items()}, note) for table in tables]


def _contrast(table: Table, one: Comparison) -> Contrast:
    """Equal in two tables exactly where the same rows are compared, in either direction."""
    rows = (one.row, one.baseline)
    if all(row.measured for row in rows):
        return tuple(sorted(row.measured for row in rows))
    return (table.name,), (one.row.key,)


def _judged(table: Table, p_holm: dict[Contrast, float], note: str) -> Table:
    comparisons = tuple(
        replace(one, measured=one.measured and replace(one.measured, p_holm=p_holm[_contrast(table, one)]))
        for one in table.comparisons
    )
    verdicts = {one.row.key: str(one.measured.verdict) for one in comparisons if one.measured}
    blocks = tuple(_with_verdicts(block, verdicts) for block in table.blocks)
    notes = tuple(note if line.startswith(_START) else line for line in table.notes)
    return replace(table, blocks=blocks, notes=notes, comparisons=comparisons)


def _with_verdicts(block: Block, verdicts: dict[str, str]) -> Block:
    index = next((i for i, column in enumerate(block.columns) if column.key == VERDICT), None)
    if index is None:
        return block
    rows = []
    for row in block.rows:
        cells = list(row.cells)
        cells[index] = replace(cells[index], text=verdicts.get(row.key, cells[index].text))
        rows.append(replace(row, cells=tuple(cells)))
    return replace(block, rows=tuple(rows))
