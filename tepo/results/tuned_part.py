"""Findings of tuning, as parts of a study's table: the settings that were tried, the choice and its noise."""

import math
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from tepo.common.text import counted, setting_text
from tepo.config.compose import to_dict
from tepo.evaluation.statistics.choice_noise import Cells, Lead, lead
from tepo.jobs.validate import problems_hash
from tepo.evaluation.statistics.expected_max import expected_best
from tepo.reporting.tables.expected_max_table import Tried, TunedLine, expected_best_blocks, noise_blocks, tried_blocks
from tepo.reporting.tables.table import Block
from tepo.store.facts import Facts
from tepo.studies.plan import Unit
from tepo.studies.tune import Tune
from tepo.studies.tuning_result import TunedRow, tuned_rows
from tepo.studies.vary import shown_axes

_QUIET = 0.005  # a share: problems that add less to a lead are enough


def tuned_part(lines: Sequence[TunedLine], tune: Tune) -> tuple[tuple[Block, ...], list[str]]:
    """Blocks and notes of a study that tunes, behind its results."""
    known = any(one.score is not None for line in lines for one in line.tried)
    blocks = (
        *expected_best_blocks(lines, tune.draws),
        *(tried_blocks(lines, shown_axes(tune.space)[tune.first_range]) if tune.first_range and known else ()),
        *noise_blocks(lines),
    )
    return blocks, _notes(lines, tune)


def tuned_lines(units: Sequence[Unit], tune: Tune, facts: Facts) -> list[TunedLine]:
    """The rows of a plan that are tuned."""
    rows = tuned_rows(units, tune, partial(_share, facts))
    several = len({row.first.model for row in rows}) > 1
    return [_tuned_line(row, several, facts) for row in rows]


def _share(facts: Facts, unit: Unit) -> float | None:
    """Validation of a unit that helps to choose."""
    found = facts.of(unit.id).validation
    return found.share if found and found.problems == problems_hash(unit.config) else None


def _tuned_line(row: TunedRow, several_models: bool, facts: Facts) -> TunedLine:
    unit = row.first
    done = sum(row.share(one) is not None for units in row.tried for one in units)
    settings = [setting_text(units[0].row.setting.point) for units in row.tried]
    second = row.runner_up
    return TunedLine(
        key=f"{unit.model}/{unit.row_label}",
        label=unit.row_label,
        method=unit.row.objective or "",
        look=unit.row.look,
        model=unit.config.model.name if several_models else "",
        best=expected_best(row.known) if row.known else [],
        done=f"{done} of {sum(map(len, row.tried))}",
        setting="" if row.chosen is None else settings[row.chosen],
        tried=[
            Tried(
                setting=setting,
                at=_position(row.tried[index][0], row.tune),
                score=row.scores.get(index, row.first_scores[index]),
                drawn=index in row.draws,
                complete=index in row.scores,
            )
            for index, setting in enumerate(settings)
        ],
        runner_up="" if second is None else settings[second],
        lead=_lead(row, facts),
    )


def _position(unit: Unit, tune: Tune) -> float | None:
    """The value of the first range in the unit's configuration, whether it was drawn or is the default's."""
    if tune.first_range is None:
        return None
    value: Any = to_dict(unit.config)
    for key in tune.first_range.split("."):
        value = value[key]
    return float(value)


def _lead(row: TunedRow, facts: Facts) -> Lead | None:
    """Lead of the chosen setting over the runner-up; None where there is none, or a validation kept no counts."""
    if row.chosen is None or row.runner_up is None:
        return None
    chosen, second = (_cells(row.tried[index], facts) for index in (row.chosen, row.runner_up))
    return lead(chosen, second) if chosen and second else None


def _cells(units: Sequence[Unit], facts: Facts) -> Cells:
    """Shares of right responses to validation problems; nothing where a validation kept none."""
    counts = [found.right if (found := facts.of(unit.id).validation) else {} for unit in units]
    return {
        name: np.array([one[name] for one in counts]) / int(name.rpartition("@")[2])
        for name in counts[0]
        if all(name in one for one in counts)
    }


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
        "k = n: the best validation accuracy to expect of n of these settings, an unbiased estimate; ± = half of the "
        "95% interval over which settings were drawn (bootstrap; too narrow where k is near their number).",
        *tune.gap_lines,
    ]
    if missing := [line.label for line in lines if not line.setting]:
        notes.append(f"Settings still to be tried, so none is chosen: {'; '.join(missing)}.")
    return [*notes, *_noise_notes(lines, tune)]


def _noise_notes(lines: Sequence[TunedLine], tune: Tune) -> list[str]:
    """Sentences on how much of the choices may be luck, once one is made."""
    leads = [line.lead for line in lines if line.lead]
    if not leads:
        unknown = "Noise of choosing: unknown, these validations kept the share of right responses alone."
        return [unknown] if any(line.setting and line.runner_up for line in lines) else []
    problems, seeds = ([getattr(one, name) for one in leads] for name in ("by_problems", "by_seeds"))
    by_seeds = "unknown by seeds, of which there is one" if math.isnan(seeds[0]) else f"{_spread(seeds)} by seeds"
    notes = [
        "Noise of choosing: standard error of a row's lead over its runner-up, median and largest of the rows: "
        f"{_spread(problems)} by the validation problems, {by_seeds} ({len(tune.seeds)})."
    ]
    if max(problems) >= _QUIET:
        notes.append(
            "The validation problems alone add half a point or more to a lead: more of them (train.validation_problems,"
            " data.held_out) would choose better."
        )
    return notes


def _spread(errors: Sequence[float]) -> str:
    return f"{100 * median(errors):.2f} and {100 * max(errors):.2f} points"
