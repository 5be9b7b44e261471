"""A sweep, the same rows at several settings, as a table of rows x settings."""

from collections.abc import Mapping, Sequence

from tepo.common.text import setting_text
from tepo.evaluation.statistics.comparison import AVERAGE
from tepo.reporting.tables.build_table import RowSpec
from tepo.reporting.tables.table import MISSING, Block, Cell, Column, Row, ranked


def sweep_blocks(rows: Sequence[RowSpec], measured: Sequence[Block]) -> tuple[Block, ...]:
    """Rows x values of the first axis, the average accuracy in each cell: a block a model and combination of the other
    axes. measured: the blocks of `build_table`, where the averages are."""
    averages = {
        row.key: cell
        for block in measured
        for row in block.rows
        for column, cell in zip(block.columns, row.cells, strict=True)
        if column.key == AVERAGE
    }
    groups: dict[tuple[str, str], list[RowSpec]] = {}
    for row in rows:
        groups.setdefault((row.model, setting_text(_others(row.setting))), []).append(row)
    return tuple(_block(model, others, part, averages) for (model, others), part in groups.items())


def _others(setting: Mapping[str, str]) -> dict[str, str]:
    return dict(list(setting.items())[1:])


def _block(model: str, others: str, rows: Sequence[RowSpec], averages: Mapping[str, Cell]) -> Block:
    axis = next(iter(rows[0].setting))
    values = dict.fromkeys(row.setting[axis] for row in rows)
    lines: dict[str, list[RowSpec]] = {}
    for row in rows:
        lines.setdefault(row.label, []).append(row)
    title = ", ".join(filter(None, (f"Average accuracy by {axis}", model, others)))
    columns = tuple(Column(f"{axis}={value}", value) for value in values)
    table = []
    for label, points in lines.items():
        cells = {row.setting[axis]: averages.get(row.key, MISSING) for row in points}
        first = points[0]
        table.append(Row(label, label, tuple(cells[value] for value in values), first.method, look=first.look))
    return ranked(Block(title, columns, tuple(table), axis=axis))
