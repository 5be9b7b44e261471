"""Findings of tuning, as parts of a study's table: the settings that were tried, and the choice."""

from collections.abc import Sequence
from typing import Any

from tepo.common.text import counted, setting_text
from tepo.config.compose import to_dict
from tepo.jobs.validate import problems_hash
from tepo.reporting.tables.table import TableBlock
from tepo.reporting.tables.tuned_table import Tried, TunedLine, tried_blocks
from tepo.store.facts import Facts
from tepo.studies.plan import Unit
from tepo.studies.tune import Tune
from tepo.studies.tuning_result import tuned_rows
from tepo.studies.vary import shown_axes


def tuned_part(lines: Sequence[TunedLine], tune: Tune) -> tuple[tuple[TableBlock, ...], list[str]]:
    """Blocks and notes of a study that tunes, behind its results."""
    axis = shown_axes(tune.space)[tune.first_range] if tune.first_range else "the settings"
    return tried_blocks(lines, axis) if any(line.known for line in lines) else (), _notes(lines, tune)


def tuned_lines(units: Sequence[Unit], tune: Tune, facts: Facts) -> list[TunedLine]:
    """The rows of a plan that are tuned."""

    def share(unit: Unit) -> float | None:
        """Validation of a unit that helps to choose."""
        found = facts.of(unit.id).validation
        return found.share if found and found.problems == problems_hash(unit.config) else None

    rows, lines = tuned_rows(units, tune, share), []
    several = len({row.first.model for row in rows}) > 1
    for row in rows:
        unit, done = row.first, sum(share(one) is not None for tried in row.tried for one in tried)
        settings = [setting_text(tried[0].row.setting.point) for tried in row.tried]
        tried = [
            Tried(
                setting=setting,
                at=_position(row.tried[index][0], tune),
                score=row.scores.get(index, row.first_scores[index]),
                drawn=index in row.draws,
                complete=index in row.scores,
            )
            for index, setting in enumerate(settings)
        ]
        line = TunedLine(
            key=f"{unit.model}/{unit.row_label}",
            label=unit.row_label,
            method=unit.row.objective or "",
            look=unit.row.look,
            model=unit.config.model.name if several else "",
            done=f"{done} of {sum(map(len, row.tried))}",
            setting="" if row.chosen is None else settings[row.chosen],
            tried=tried,
        )
        lines.append(line)
    return lines


def _position(unit: Unit, tune: Tune) -> float | None:
    """The value of the first range in the unit's configuration, whether it was drawn or is the default's."""
    if tune.first_range is None:
        return None
    value: Any = to_dict(unit.config)
    for key in tune.first_range.split("."):
        value = value[key]
    return float(value)


def _notes(lines: Sequence[TunedLine], tune: Tune) -> list[str]:
    seeds = f"{'seed' if len(tune.seeds) == 1 else 'seeds'} {', '.join(map(str, tune.seeds))}"
    drawn = "drawn at random" if tune.method == "random" else "that fill the space evenly (Sobol)"
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
    notes = [
        f"Setting: of {counted(tune.draws, 'setting')} {drawn}, the same for every row{default}, the best by "
        f"validation accuracy of the last weights, {how}",
        *tune.gap_lines,
    ]
    if missing := [f"{line.label} ({line.done} runs done)" for line in lines if not line.setting]:
        notes.append(f"Settings still to be tried, so none is chosen: {'; '.join(missing)}.")
    return notes
