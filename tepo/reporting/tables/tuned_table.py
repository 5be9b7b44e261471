"""Results of tuning in a table: the setting of each row, and the validation accuracy of every setting."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tepo.reporting.colours import Look
from tepo.reporting.tables.table import MISSING, Cell, Column, Kind, TableBlock, TableRow


@dataclass(frozen=True)
class Tried:
    """A setting of a row. at: on the axis that is drawn; None where no axis is a range. score: mean validation accuracy
    over the tuning seeds, a share; None while one is missing. drawn: it is no default. complete: it has all tuning
    seeds, so it can be chosen."""

    setting: str
    at: float | None
    score: float | None
    drawn: bool
    complete: bool


@dataclass(frozen=True)
class TunedLine:
    """A row that is tuned. key: of the row in the table of results. done: how far it is, in words. setting: what was
    chosen, in words; empty before."""

    key: str
    label: str
    method: str
    look: Look | None
    model: str
    done: str
    setting: str
    tried: Sequence[Tried]

    @property
    def known(self) -> bool:
        """True once a setting has a score."""
        return any(one.score is not None for one in self.tried)


def tried_blocks(lines: Sequence[TunedLine], axis: str) -> tuple[TableBlock, ...]:
    """A block a model: the validation accuracy of each setting, a column a row of the study, in the order of the axis;
    the chosen one of each column has rank 1."""
    blocks = []
    for model in dict.fromkeys(line.model for line in lines):
        part = [line for line in lines if line.model == model]
        rows = [
            TableRow(
                f"tried/{model}/{part[0].tried[index].setting}",
                part[0].tried[index].setting,
                tuple(_tried_cell(line.tried[index], line.setting) for line in part),
            )
            for index in sorted(range(len(part[0].tried)), key=lambda index: part[0].tried[index].at or 0)
        ]
        title = ", ".join(filter(None, (f"Validation accuracy over {axis}", model)))
        blocks.append(TableBlock(title, tuple(Column(line.key, line.label) for line in part), tuple(rows)))
    return tuple(blocks)


def _tried_cell(tried: Tried, chosen: str) -> Cell:
    if tried.score is None:
        return MISSING
    return Cell(100 * tried.score, rank=int(tried.complete and tried.setting == chosen))


def with_settings(blocks: Sequence[TableBlock], lines: Sequence[TunedLine]) -> tuple[TableBlock, ...]:
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
