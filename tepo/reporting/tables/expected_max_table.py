"""Results of tuning as blocks of a table: the expected best of k settings, and the setting of each row."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tepo.evaluation.statistics.expected_max import Best
from tepo.reporting.colours import Look
from tepo.reporting.tables.table import MISSING, Block, Cell, Column, Kind, TableRow, percent_cell, ranked

_TITLE = "Expected best validation accuracy of k settings, ± over which settings were drawn"


@dataclass(frozen=True)
class TunedLine:
    """A row that is tuned. key: of the row in the table of results. best: for k = 1, 2 …, empty while a draw is
    missing. done: how far it is, in words. setting: what was chosen, in words; empty before."""

    key: str
    label: str
    method: str
    look: Look | None
    model: str
    best: Sequence[Best]
    done: str
    setting: str


def expected_best_blocks(lines: Sequence[TunedLine], draws: int) -> tuple[Block, ...]:
    """A block a model: the expected best of 1, 2, 4, 8 … settings and of all, and the setting that was chosen."""
    sizes = sorted({1, draws, *(2**power for power in range(draws.bit_length()) if 2**power <= draws)})
    columns = tuple(Column(f"best{k}", f"k = {k}") for k in sizes)
    blocks = []
    for model in dict.fromkeys(line.model for line in lines):
        rows = []
        for line in (line for line in lines if line.model == model):
            best = [line.best[k - 1] for k in sizes] if line.best else []
            cells = [percent_cell(one.mean, one.low, one.high, draws) for one in best] or [MISSING] * len(sizes)
            words = (Cell(text=line.done), Cell(text=line.setting))
            rows.append(TableRow(line.key, line.label, (*cells, *words), line.method, look=line.look))
        words_columns = (Column("runs", "Runs", Kind.TEXT), Column("chosen", "Chosen", Kind.TEXT))
        title = ", ".join(filter(None, (_TITLE, model)))
        blocks.append(ranked(Block(title, (*columns, *words_columns), tuple(rows))))
    return tuple(blocks)


def with_settings(blocks: Sequence[Block], lines: Sequence[TunedLine]) -> tuple[Block, ...]:
    """The blocks of results with a column for the setting that each row was measured at."""
    settings = {line.key: line.setting for line in lines}
    column = Column("setting", "Setting", Kind.TEXT)
    return tuple(
        replace(
            block,
            columns=(*block.columns, column),
            rows=tuple(replace(row, cells=(*row.cells, Cell(text=settings.get(row.key, "")))) for row in block.rows),
        )
        for block in blocks
    )
