"""Excerpts of the runs of a sweep that fell: few, and chosen by rule, so that nobody picks what is shown."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import pandas as pd

from tepo.common.errors import UserError
from tepo.common.files import exclusive
from tepo.store.excerpt import Again, Excerpt
from tepo.store.facts import Facts
from tepo.store.records import excerpt_json, read_frames, write_frames
from tepo.store.run_folder import RunFolder
from tepo.store.thinned_metrics import differing_step, thinned
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import Planned
from tepo.studies.planned_facts import Records
from tepo.studies.record_runs import joined_sessions


@dataclass(frozen=True)
class SweepRun:
    """A measured run of a sweep."""

    id: str
    grid: tuple[str, ...]  # model and values of all axes but the first, the same for all runs of a map
    row: str
    value: str  # of the first axis
    seed: int
    accuracy: float  # over all samples, 0 to 1
    fell: bool  # it ended early, and not because all was right


def fallen(runs: Sequence[SweepRun]) -> list[str]:
    """Ids of at most two runs of each grid: at the largest number at which any run fell, of the rows with such a run
    the one that loses least there against its own best average and the one that loses most; of each, among its runs
    that fell, the one of median accuracy (of two in the middle the lower, of equal ones the first seed)."""
    chosen: list[str] = []
    for grid in dict.fromkeys(run.grid for run in runs):
        part = [run for run in runs if run.grid == grid]
        largest = max((_number(run.value) for run in part if run.fell), default=-math.inf)
        down: dict[str, list[SweepRun]] = {}
        for run in part:
            if run.fell and _number(run.value) == largest > -math.inf:
                down.setdefault(run.row, []).append(run)
        lost = {}
        for row, own in down.items():
            accuracies: dict[str, list[float]] = {}
            for run in part:
                if run.row == row:
                    accuracies.setdefault(run.value, []).append(run.accuracy)
            lost[row] = max(map(fmean, accuracies.values())) - fmean(accuracies[own[0].value])
        for pick in (min, max) if lost else ():
            ordered = sorted(down[pick(lost, key=lost.__getitem__)], key=lambda run: (run.accuracy, run.seed))
            chosen.append(ordered[(len(ordered) - 1) // 2].id)
    return list(dict.fromkeys(chosen))


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


@dataclass(frozen=True)
class Quoted:
    """Runs of a folder with an excerpt, and those that should have one of which the store has no dumps of a fall."""

    known: int
    lacking: tuple[Unit, ...]


def record_excerpts(folder: Path, planned: Planned) -> Quoted:
    """Add to the records of a folder excerpts of the runs that `fallen` chooses, as far as the store holds these runs
    with their token dumps, and drop those of other runs. Nothing else of a record changes: an excerpt of a run that was
    made again says so. Raises UserError where nothing is on record, and as `record_study` does."""
    with exclusive(folder.with_name(f"{folder.name}.write")):
        frames = read_frames(folder)
        if not len(frames.runs):
            what, fix = "nothing is on record of which there could be excerpts", "first `tepo records write` without it"
            raise UserError(what, where=str(folder), fix=fix)
        kept = Records.found([folder])
        kept.read(set(frames.runs["run"]))
        held = [(study, [unit for unit in part if kept.holds(unit)]) for study, part in planned]
        recorded = [(study, [replace(unit, recorded=True) for unit in part]) for study, part in held]
        units = {unit.id: unit for _, part in recorded for unit in part}
        facts = kept.facts(recorded)
        chosen = fallen(sweep_runs(units.values(), facts))
        excerpts = {id: _excerpt(facts, id, units[id].in_store) or facts.of(id).excerpt for id in chosen}
        rows = [
            dict(zip(frames.runs.columns, row, strict=True)) | {"excerpt": excerpt_json(excerpts.get(row.run))}
            for row in frames.runs.itertuples(index=False)
        ]
        write_frames(folder, replace(frames, runs=pd.DataFrame(rows)))
    lacking = tuple(units[id] for id in chosen if excerpts[id] is None)
    return Quoted(len(chosen) - len(lacking), lacking)


def _excerpt(facts: Facts, id: str, run: RunFolder) -> Excerpt | None:
    """Excerpt of a recorded run from its folder in the store, which may be that of the same run made again."""
    excerpt = run.excerpt() if run.finished() else None
    sessions = joined_sessions(run.sessions(()))
    if excerpt is None or {one["started"] for one in sessions} <= {one["started"] for one in facts.of(id).made}:
        return excerpt
    return replace(excerpt, again=Again(sessions, differing_step(facts.metrics(id), thinned(run.metrics()))))
