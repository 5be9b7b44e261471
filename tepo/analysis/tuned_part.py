"""Findings of tuning, as parts of a study's table: the settings that were tried, and the choice."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tepo.common.text import counted
from tepo.config.compose import to_dict
from tepo.jobs.validate import problems_hash
from tepo.reporting.tables.table import MISSING, Cell, Column, Kind, Table, TableBlock, TableRow
from tepo.store.facts import Facts
from tepo.studies.plan import Unit
from tepo.studies.tune import Tune
from tepo.studies.tuning_result import TunedRow, tuned_rows
from tepo.studies.vary import shown_axes


def with_tuning(table: Table, units: Sequence[Unit], tune: Tune, facts: Facts) -> Table:
    """The table of rows that are tuned, with a column for the setting of each and, behind its blocks, the validation
    accuracy of every setting that was tried."""

    def share(unit: Unit) -> float | None:
        """Validation of a unit that helps to choose."""
        validation = facts.of(unit.id).validation
        return validation.share if validation and validation.problems == problems_hash(unit.config) else None

    rows = tuned_rows(units, tune, share)
    chosen = {_key(row): "" if row.chosen is None else row.shown(row.chosen) for row in rows}
    column = Column("setting", "Setting", Kind.TEXT)
    blocks = []
    for block in table.blocks:
        lines = [replace(row, cells=(*row.cells, Cell(text=chosen.get(row.key, "")))) for row in block.rows]
        blocks.append(replace(block, columns=(*block.columns, column), rows=tuple(lines)))
    if any(_score(row, index) is not None for row in rows for index in range(len(row.tried))):
        blocks += _tried_blocks(rows, tune)
    notes = [_how(tune), *tune.gap_lines]
    missing = []
    for row in rows:
        if row.chosen is None:
            has_share = [share(unit) is not None for tried in row.tried for unit in tried]
            missing.append(f"{row.first.row_label} ({sum(has_share)} of {len(has_share)} runs done)")
    if missing:
        notes.append(f"Settings still to be tried, so none is chosen: {'; '.join(missing)}.")
    return replace(table, blocks=tuple(blocks), notes=(*table.notes, *notes))


def _key(row: TunedRow) -> str:
    """Key of the row in the table of results."""
    return f"{row.first.model}/{row.first.row_label}"


def _score(row: TunedRow, index: int) -> float | None:
    """Mean validation accuracy over the tuning seeds, a share; None while one is missing."""
    return row.scores.get(index, row.first_scores[index])


def _tried_blocks(rows: Sequence[TunedRow], tune: Tune) -> list[TableBlock]:
    """A block a model: the accuracy at each setting, a column a row of the study, in the order of the first range; the
    chosen one of each column has rank 1."""
    axis = shown_axes(tune.space)[tune.first_range] if tune.first_range else "the settings"
    models = dict.fromkeys(row.first.model for row in rows)
    blocks = []
    for model in models:
        part = [row for row in rows if row.first.model == model]
        name = part[0].first.config.model.name if len(models) > 1 else ""
        lines = []
        for index in sorted(range(len(part[0].tried)), key=lambda index: _position(part[0].tried[index][0], tune)):
            scores = [(_score(row, index), row.chosen == index) for row in part]
            cells = [MISSING if score is None else Cell(100 * score, rank=int(best)) for score, best in scores]
            setting = part[0].shown(index)
            lines.append(TableRow(f"tried/{name}/{setting}", setting, tuple(cells)))
        title = ", ".join(filter(None, (f"Validation accuracy over {axis}", name)))
        columns = tuple(Column(_key(row), row.first.row_label) for row in part)
        blocks.append(TableBlock(title, columns, tuple(lines)))
    return blocks


def _position(unit: Unit, tune: Tune) -> float:
    """The value of the first range in the unit's configuration, whether it was drawn or is the default's."""
    if tune.first_range is None:
        return 0.0
    value: Any = to_dict(unit.config)
    for key in tune.first_range.split("."):
        value = value[key]
    return float(value)


def _how(tune: Tune) -> str:
    seeds = f"{'seed' if len(tune.seeds) == 1 else 'seeds'} {', '.join(map(str, tune.seeds))}"
    sampling = "drawn at random" if tune.method == "random" else "that fill the space evenly (Sobol)"
    default = ", and the row as it is written (default)" if tune.default else ""
    if (short := tune.shortlist) is None:
        how = f"trained with {seeds}; no test problem enters the choice, and none was pruned."
    else:
        first = f"{'seed' if short.after == 1 else 'seeds'} {', '.join(map(str, tune.seeds[: short.after]))}"
        also = " and the default" if tune.default else ""
        how = (
            f"the draws trained with {first}, the best {short.keep} of each row{also} with {seeds}, among which the "
            "mean over all of these chooses; no test problem enters the choice."
        )
    return (
        f"Setting: of {counted(tune.draws, 'setting')} {sampling}, the same for every row{default}, the best by "
        f"validation accuracy of the last weights, {how}"
    )
