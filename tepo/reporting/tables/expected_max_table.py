"""Results of tuning as blocks of a table: the expected best of k settings, the setting of each row, the validation
accuracy of every setting, and the noise of the choice."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tepo.evaluation.statistics.choice_noise import Lead
from tepo.evaluation.statistics.expected_max import Best
from tepo.reporting.colours import Look
from tepo.reporting.tables.table import MISSING, Block, Cell, Column, Kind, TableRow, percent_cell, ranked

_TITLE = "Expected best validation accuracy of k settings, ± over which settings were drawn"


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
    """A row that is tuned. key: of the row in the table of results. best: for k = 1, 2 …, empty while a draw is
    missing. done: how far it is, in words. setting: what was chosen, in words; empty before. lead: over the runner-up,
    which is in words; None where counts a problem are missing."""

    key: str
    label: str
    method: str
    look: Look | None
    model: str
    best: Sequence[Best]
    done: str
    setting: str
    tried: Sequence[Tried] = ()
    runner_up: str = ""
    lead: Lead | None = None


def expected_best_blocks(lines: Sequence[TunedLine], draws: int) -> tuple[Block, ...]:
    """A block a model: the expected best of 1, 2, 4, 8 … settings and of all, and the setting that was chosen."""
    sizes = sorted({1, draws, *(2**power for power in range(draws.bit_length()) if 2**power <= draws)})
    columns = tuple(Column(f"best{k}", f"k = {k}") for k in sizes)
    blocks = []
    for title, part in _by_model(_TITLE, lines):
        rows = []
        for line in part:
            best = [line.best[k - 1] for k in sizes] if line.best else []
            cells = [percent_cell(one.mean, one.low, one.high, draws) for one in best] or [MISSING] * len(sizes)
            words = (Cell(text=line.done), Cell(text=line.setting))
            rows.append(TableRow(line.key, line.label, (*cells, *words), line.method, look=line.look))
        words_columns = (Column("runs", "Runs", Kind.TEXT), Column("chosen", "Chosen", Kind.TEXT))
        blocks.append(ranked(Block(title, (*columns, *words_columns), tuple(rows))))
    return tuple(blocks)


def tried_blocks(lines: Sequence[TunedLine], axis: str) -> tuple[Block, ...]:
    """A block a model: the validation accuracy of each setting, a column a row of the study, in the order of the axis;
    the chosen one of each column has rank 1."""
    blocks = []
    for title, part in _by_model(f"Validation accuracy over {axis}", lines):
        columns = tuple(Column(line.key, line.label) for line in part)
        order = sorted(range(len(part[0].tried)), key=lambda index: part[0].tried[index].at or 0)
        rows = []
        for index in order:
            cells = tuple(_tried_cell(line.tried[index], line.setting) for line in part)
            setting = part[0].tried[index].setting
            rows.append(TableRow(f"tried/{part[0].model}/{setting}", setting, cells))
        blocks.append(Block(title, columns, tuple(rows)))
    return tuple(blocks)


def _tried_cell(tried: Tried, chosen: str) -> Cell:
    if tried.score is None:
        return MISSING
    return Cell(100 * tried.score, rank=int(tried.complete and tried.setting == chosen))


def noise_blocks(lines: Sequence[TunedLine]) -> tuple[Block, ...]:
    """A block a model: the lead of each row's setting over its runner-up, with its standard errors; none where no row
    has any."""
    columns = (
        Column("lead", "Lead", Kind.DELTA),
        Column("by_problems", "SE, problems"),
        Column("by_seeds", "SE, seeds"),
        Column("runner_up", "Runner-up", Kind.TEXT),
    )
    blocks = []
    for title, part in _by_model("Noise of choosing: points of validation accuracy", lines):
        rows = [
            TableRow(
                f"noise/{line.key}",
                line.label,
                (Cell(100 * one.mean), _points(one.by_problems), _points(one.by_seeds), Cell(text=line.runner_up)),
                line.method,
                look=line.look,
            )
            for line in part
            if (one := line.lead)
        ]
        if rows:
            blocks.append(Block(title, columns, tuple(rows), decimals=2))
    return tuple(blocks)


def _points(share: float) -> Cell:
    return MISSING if math.isnan(share) else Cell(100 * share)


def _by_model(title: str, lines: Sequence[TunedLine]) -> list[tuple[str, list[TunedLine]]]:
    return [
        (", ".join(filter(None, (title, model))), [line for line in lines if line.model == model])
        for model in dict.fromkeys(line.model for line in lines)
    ]


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
