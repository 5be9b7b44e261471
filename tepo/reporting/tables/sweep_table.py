"""A sweep, the same rows at several settings: rows x settings, and what each row loses over them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from tepo.common.grouping import grouped
from tepo.common.text import setting_text
from tepo.evaluation.statistics.samples import AVERAGE
from tepo.reporting.colours import UNTRAINED
from tepo.reporting.tables.build_table import RowSpec, equal_rows
from tepo.reporting.tables.table import MISSING, SAME, Cell, Column, Kind, TableBlock, TableRow

LOST = "lost"


def sweep_blocks(rows: Sequence[RowSpec], measured: Sequence[TableBlock]) -> tuple[TableBlock, ...]:
    """Rows x values of the first axis, the average accuracy in each cell: a block a model and combination of the other
    axes. measured: the blocks of `build_table`, where the averages are."""
    averages = {key: cell for block in measured for key, cell in block.column(AVERAGE).items()}
    seeds = max((len(row.seeds) for block in measured for row in block.rows), default=0)
    over = "± is over seeds and problems." if seeds > 1 else "± is over problems alone."
    identical = {_environment(row) + row.label for row in rows if row.same_as}
    blocks = []
    for block in _grids("Average accuracy", rows, averages, Kind.SCORE):
        same = {key for keys in equal_rows(block) for key in keys}
        lines = [
            replace(row, label=f"{row.label} {SAME}") if row.key in same or block.part + row.key in identical else row
            for row in block.rows
        ]
        blocks.append(replace(block, rows=tuple(lines), notes=(over,)))
    return tuple(blocks)


def realised_kl_blocks(rows: Sequence[RowSpec], found: Mapping[str, float]) -> tuple[TableBlock, ...]:
    """Rows x values of the first axis, the realised KL in each cell. found: nats a token, by a row's key."""
    cells = {key: Cell(text=f"{kl:.3g}") for key, kl in found.items()}
    note = "Mean of actor/realised_kl_k3 over seeds and steps: how far the updates of a rollout take the policy."
    return tuple(replace(block, axis="", notes=(note,)) for block in _grids("Realised KL", rows, cells, Kind.TEXT))


def _grids(what: str, rows: Sequence[RowSpec], cells: Mapping[str, Cell], kind: Kind) -> list[TableBlock]:
    """Rows x values of the first axis, a block for each environment; none is ranked."""
    grids = []
    for environment, part in grouped((_environment(row), row) for row in rows).items():
        axis = next(iter(part[0].setting))
        columns = tuple(Column(f"{axis}={value}", value, kind) for value in {row.setting[axis]: None for row in part})
        at = {(row.label, row.setting[axis]): cells.get(row.key, MISSING) for row in part}
        first: dict[str, RowSpec] = {}
        for row in part:
            first.setdefault(row.label, row)
        lines = [
            TableRow(label, label, tuple(at[label, column.title] for column in columns), row.method, look=row.look)
            for label, row in first.items()
        ]
        title = ", ".join(filter(None, (f"{what} by {axis}", environment)))
        grids.append(TableBlock(title, columns, tuple(lines), part=environment, axis=axis))
    return grids


def environment_of(model: str, point: Mapping[str, str]) -> str:
    """Name of the model, empty where a study has one alone, and of the values of all axes but the first."""
    return ", ".join(filter(None, (model, setting_text(dict(list(point.items())[1:])))))


def _environment(row: RowSpec) -> str:
    return environment_of(row.model, row.setting)


def lost_blocks(grids: Sequence[TableBlock]) -> tuple[TableBlock, ...]:
    """One block: what each trained row that has all of its grid loses against its best on average over the values of
    the first axis, in points, the mean over the grids. Empty where there is no such row, or one value alone."""
    lost: dict[str, tuple[TableRow, list[float]]] = {}
    for row in (row for grid in grids for row in grid.rows if row.method != UNTRAINED):
        means = [math.nan if cell.mean is None else cell.mean for cell in row.cells]
        lost.setdefault(row.key, (row, []))[1].append(max(means) - fmean(means))
    rows = tuple(
        TableRow(key, key, (Cell(fmean(losses)),), row.method, look=row.look)
        for key, (row, losses) in lost.items()
        if not math.isnan(fmean(losses))
    )
    if not rows or len(grids[0].columns) < 2:
        return ()
    note = f"What a value of {grids[0].axis} drawn blindly from the grid loses. This describes; it decides nothing."
    return (TableBlock("Loss over the grid", (Column(LOST, "Average loss against the best"),), rows, notes=(note,)),)
