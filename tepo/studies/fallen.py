"""The runs of a sweep whose responses are kept: few, and chosen by rule, so that nobody picks what is shown."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from tepo.store.facts import Facts
from tepo.studies.plan import Unit


@dataclass(frozen=True)
class SweepRun:
    """A measured run of a sweep. grid: model and values of all axes but the first, the same for all runs of a map.
    value: of the first axis. accuracy: over all samples, 0 to 1. fell: it ended early, and not because all was right.
    """

    id: str
    grid: tuple[str, ...]
    row: str
    value: str
    seed: int
    accuracy: float
    fell: bool


def fallen(runs: Sequence[SweepRun]) -> list[str]:
    """Ids of at most two runs of each grid: at the largest number at which any run fell, of the rows with such a run
    the one that loses least there against its own best average and the one that loses most; of each, among its runs
    that fell, the one of median accuracy (of two in the middle the lower, of equal ones the first seed)."""
    grids = [[run for run in runs if run.grid == grid] for grid in dict.fromkeys(run.grid for run in runs)]
    return list(dict.fromkeys(id for grid in grids for id in _of_grid(grid)))


def _of_grid(runs: Sequence[SweepRun]) -> list[str]:
    largest = max((_number(run.value) for run in runs if run.fell), default=-math.inf)
    falls: dict[str, list[SweepRun]] = {}
    for run in runs:
        if run.fell and _number(run.value) == largest > -math.inf:
            falls.setdefault(run.row, []).append(run)
    lost = {row: _lost([run for run in runs if run.row == row], own[0].value) for row, own in falls.items()}
    rows = [pick(lost, key=lost.__getitem__) for pick in (min, max)] if lost else []
    ordered = [sorted(falls[row], key=lambda run: (run.accuracy, run.seed)) for row in rows]
    return [own[(len(own) - 1) // 2].id for own in ordered]


def _lost(row: Sequence[SweepRun], value: str) -> float:
    """Average accuracy that a row loses at a value against its best."""
    values = dict.fromkeys(run.value for run in row)
    means = {one: fmean(run.accuracy for run in row if run.value == one) for one in values}
    return max(means.values()) - means[value]


def _number(text: str) -> float:
    """-inf for what is no number: such values have no order."""
    try:
        return float(text)
    except ValueError:
        return -math.inf


def sweep_runs(units: Iterable[Unit], facts: Facts) -> list[SweepRun]:
    """The measured units on the grid of a study."""
    runs = []
    for unit in units:
        answers = [one for name in unit.benchmarks if (one := facts.right(unit.id, name))]
        if (
            unit.row.objective is None
            or not unit.row.setting.point
            or not answers
            or not facts.of(unit.id, tuning=unit.tuning).done
        ):
            continue
        value, *others = unit.row.setting.point.values()
        right, samples = sum(sum(one.right) for one in answers), sum(len(one.right) * one.samples for one in answers)
        ending = facts.of(unit.id).ending
        fell = ending is not None and ending.kind != "saturation"
        runs.append(SweepRun(unit.id, (unit.model, *others), unit.row_label, value, unit.seed, right / samples, fell))
    return runs
