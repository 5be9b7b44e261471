"""What a study that tunes shows beside its results: settings, and the expected best of k."""

from collections.abc import Sequence
from dataclasses import replace

from tepo.common.text import counted, setting_text
from tepo.evaluation.statistics.expected_max import expected_best
from tepo.reporting.tables.expected_max_table import TunedLine, expected_best_blocks, with_settings
from tepo.reporting.tables.table import Table
from tepo.studies.plan import Unit
from tepo.studies.tune import Tune
from tepo.studies.tuning_result import TunedRow, tuned_rows


def tuned_lines(units: Sequence[Unit], tune: Tune) -> list[TunedLine]:
    """The rows of a plan that are tuned."""
    rows = tuned_rows(units, tune)
    several = len({row.first.model for row in rows}) > 1
    return [_line(row, several) for row in rows]


def _line(row: TunedRow, several_models: bool) -> TunedLine:
    unit = row.first
    done = sum(one.done() for draw in row.draws for one in draw)
    return TunedLine(
        key=f"{unit.model}/{unit.row_label}",
        label=unit.row_label,
        method=unit.row.objective or "",
        look=unit.row.look,
        model=unit.config.model.name if several_models else "",
        best=expected_best(row.known) if row.known else [],
        done=f"{done} of {sum(map(len, row.draws))}",
        setting="" if row.setting is None else setting_text(row.setting.point),
    )


def with_tuning(table: Table, units: Sequence[Unit], tune: Tune) -> Table:
    """The table of results with the setting of each row, then the expected best of k."""
    lines = tuned_lines(units, tune)
    return replace(
        table,
        blocks=(*with_settings(table.blocks, lines), *expected_best_blocks(lines, tune.draws)),
        notes=(*table.notes, *_notes(lines, tune)),
    )


def _notes(lines: Sequence[TunedLine], tune: Tune) -> list[str]:
    seeds = f"{'seed' if len(tune.seeds) == 1 else 'seeds'} {', '.join(map(str, tune.seeds))}"
    notes = [
        f"Setting: of {counted(tune.draws, 'setting')} drawn at random, the same for every row, the best by validation "
        f"accuracy of the last weights, trained with {seeds}; no test problem enters the choice, and none was pruned.",
        "k = n: the best validation accuracy to expect of n of these settings, an unbiased estimate; ± = half of the "
        "95% interval over which settings were drawn (bootstrap; too narrow where k is near their number).",
    ]
    if missing := [line.label for line in lines if not line.best]:
        notes.append(f"Settings still to be tried, so none is chosen: {'; '.join(missing)}.")
    return notes
