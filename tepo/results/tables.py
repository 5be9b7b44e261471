"""From the units of a study to its table."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from tepo.common.paths import departure
from tepo.common.text import counted
from tepo.evaluation.statistics.comparison import COLUMNS
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.grader.options import REVISION, is_of_today
from tepo.reporting.colours import UNTRAINED
from tepo.reporting.tables.build_table import RowSpec, TableSpec, build_table
from tepo.reporting.tables.multiple_comparisons import one_family
from tepo.reporting.tables.provenance_note import mixed
from tepo.reporting.tables.sensitivity_table import sensitivity_blocks
from tepo.reporting.tables.sweep_table import sweep_blocks
from tepo.reporting.tables.table import Table
from tepo.results.fill_command import fill_command
from tepo.results.scaling_fits import curve_part
from tepo.results.tuning_table import with_tuning
from tepo.studies.plan import Unit, unique
from tepo.studies.plan_studies import Planned
from tepo.studies.study import Study, printed


def read_samples(units: Sequence[Unit]) -> pd.DataFrame:
    """Graded responses of all measured units, a line each: `COLUMNS` of `comparison`. The samples of a
    problem are counted, not told apart: the right ones come first."""
    parts = [
        (row_key(unit), unit.seed, name, answers)
        for unit in units
        for name in unit.config.data.benchmarks
        if (answers := unit.run.right_answers(name)) is not None
    ]
    if not parts:
        return pd.DataFrame(columns=list(COLUMNS))
    rows, seeds, benchmarks, measured = zip(*parts, strict=True)
    lengths = [len(answers.problems) * answers.samples for answers in measured]
    problems = [np.repeat(np.array(one.problems, dtype=object), one.samples) for one in measured]
    sample = np.concatenate([np.tile(np.arange(one.samples), len(one.problems)) for one in measured])
    return pd.DataFrame(
        {
            "row": np.repeat(np.array(rows, dtype=object), lengths),
            "seed": np.repeat(np.array(seeds), lengths),
            "benchmark": np.repeat(np.array(benchmarks, dtype=object), lengths),
            "problem": np.concatenate(problems),
            "sample": sample,
            "correct": sample < np.concatenate([np.repeat(one.right, one.samples) for one in measured]),
        }
    )


def record_notes(units: Sequence[Unit]) -> list[str]:
    """Notes about what is read from records, and what could not be."""
    runs = unique(units)
    read, stale = sum(unit.record is not None for unit in runs), sum(unit.stale for unit in runs)
    notes = [f"{read} of {counted(len(runs), 'run')} read from records, not from the store."] if read else []
    other = "of other settings, another recipe or other problems than today's"
    return notes + ([f"{counted(stale, 'stale record')} not used: {other}."] if stale else [])


def _given_up(units: Sequence[Unit]) -> list[str]:
    """A note if the grader gave answers up."""
    total = sum(unit.run.timeouts(name) for unit in units for name in unit.config.data.benchmarks)
    return [f"Answers that ran out of the grader's budget and count as wrong: {total}."] if total else []


def _departures(units: Sequence[Unit]) -> list[str]:
    """A note for each row that departs from its paper."""
    rows = {unit.row.label: departure(unit.row.objective) for unit in units if unit.row.objective is not None}
    return [f"{label} departs from its paper: {text}" for label, text in rows.items() if text]


def _graded_before(units: Sequence[Unit]) -> list[str]:
    """A note if another revision of the grader gave the verdicts. Those on generated problems, integers all, are the
    same under each (a test says so)."""
    others = {
        (name, unit.id)
        for unit in units
        for name in unit.benchmarks
        if (by := unit.run.grader(name)) and not is_of_today(by) and not load_benchmark(name).procedural
    }
    if not others:
        return []
    said = ", ".join(sorted({name for name, _ in others}))
    fix = "`tepo regrade` judges stored responses again; records hold counts alone."
    return [f"Judged by another revision of the grader than today's, {REVISION}: {said}. {fix}"]


def _endings(units: Sequence[Unit], first: Unit) -> tuple[str, ...]:
    """Of the row that a unit belongs to: its runs that ended before their last step."""
    seeds = [unit for unit in units if row_key(unit) == row_key(first)]
    return tuple(f"seed {unit.seed}: {ending}" for unit in seeds if (ending := unit.run.ending()))


def row_key(unit: Unit) -> str:
    """Names a row of a model in the samples."""
    return f"{unit.model}/{unit.label}"


def study_tables(planned: Planned, scale: str) -> list[Table]:
    """The table of each study of a plan. Their verdicts are one family."""
    return one_family([study_table(study, scale, units) for study, units in planned])


def study_table(study: Study, scale: str, units: Sequence[Unit]) -> Table:
    """The study's rows in order, model after model, with the paper's figures as a second block.

    A sweep: rows x settings first, then the rows setting after setting. A study that tunes: the rows whose settings are
    chosen, then what tuning found.
    """
    tune = study.tune_at(scale)
    if tune is None:
        return _results(study, scale, units)
    reported = [unit for unit in units if not unit.tuning]
    table = _results(study, scale, reported) if reported else Table(study.name, study.title, ())
    return with_tuning(table, units, tune)


def _results(study: Study, scale: str, units: Sequence[Unit]) -> Table:
    """What the benchmarks say."""
    first: dict[str, Unit] = {}
    for unit in units:
        first.setdefault(row_key(unit), unit)
    several = len({unit.model for unit in units}) > 1
    specs, references = [], {}
    measured: dict[str, tuple[str, ...]] = {}
    for unit in units:
        names = sorted(unit.config.data.benchmarks)
        measured[row_key(unit)] = (*measured.get(row_key(unit), ()), *(f"{unit.id}/{name}" for name in names))
    for key, unit in first.items():
        specs.append(replace(_row_spec(unit, several), endings=_endings(units, unit), measured=measured[key]))
        reference = printed(study, unit.model, unit.row)
        if reference is not None:
            references[key] = reference
    benchmarks = dict.fromkeys(name for unit in units for name in unit.config.data.benchmarks)
    titles = {name: name if scale == "laptop" else load_benchmark(name).title for name in benchmarks}
    steps = sorted({unit.config.train.steps for unit in units})
    seeds = sorted({unit.seed for unit in units if unit.row.objective is not None})
    trained = (
        f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}, "
        f"{' and '.join(map(str, steps))} step{'' if steps == [1] else 's'}"
    )
    data = " and ".join(dict.fromkeys(unit.config.data.name for unit in units))
    note = f"{scale} scale, data {data}, {trained}; checkpoint: the last step, fixed before the run"
    differing = mixed([session for unit in unique(units) for session in unit.run.sessions(unit.benchmarks)])
    spec = TableSpec(
        specs,
        titles,
        name=study.name,
        title=study.title,
        baseline=next((unit.row_label for unit in units if unit.row.label == study.baseline), None),
        reference=references,
        notes=[
            *study.notes,
            note,
            *([differing] if differing else []),
            *_given_up(units),
            *_graded_before(units),
            *record_notes(units),
            *_departures(units),
        ],
    )
    samples = read_samples(units)
    command = "" if all(unit.done() for unit in units) else fill_command(study, scale, units)
    table = replace(build_table(samples, spec), command=command)
    if specs[0].setting:
        added = (*sweep_blocks(specs, table.blocks), *sensitivity_blocks(specs, samples))
        table = replace(table, blocks=(*added, *table.blocks))
    if study.curve:
        block, notes = curve_part(study, units)
        table = replace(table, blocks=(block, *table.blocks), notes=(*table.notes, *notes))
    return table


def _row_spec(unit: Unit, several_models: bool) -> RowSpec:
    return RowSpec(
        row_key(unit),
        unit.row_label,
        unit.row.objective or UNTRAINED,
        model=unit.config.model.name if several_models else "",
        look=unit.row.look,
        setting=unit.row.setting.point,
        benchmarks=unit.config.data.benchmarks,
    )
