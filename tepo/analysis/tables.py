"""Tables of studies, from their runs, and the command that runs what is missing."""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from tepo.analysis.drawn_axis import environment_blocks
from tepo.analysis.same_runs import same_runs
from tepo.analysis.tuned_part import with_tuning
from tepo.common.grouping import grouped
from tepo.common.text import counted
from tepo.config.own_reward import VERDICT, rewarded
from tepo.evaluation.statistics.samples import COLUMNS
from tepo.evaluation.statistics.training_measures import REALISED_KL
from tepo.evaluation.statistics.verdict import FEWEST_SEEDS
from tepo.formula.row import load_row
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.data_reader import SYSTEM
from tepo.problems.grader.options import REVISION, revision
from tepo.reporting.colours import UNTRAINED
from tepo.reporting.tables.build_table import RowSpec, TableSpec, build_table
from tepo.reporting.tables.provenance_note import mixed
from tepo.reporting.tables.sweep_table import lost_blocks, realised_kl_blocks, sweep_blocks
from tepo.reporting.tables.table import Table
from tepo.store.facts import Facts
from tepo.studies.plan import Unit, family_of, recipe_words, reported, row_key, scale_of, unique
from tepo.studies.study import Study, printed

_STORE = Path("runs")  # default of --store

_READING = re.compile(r"[A-Z]\d+: ")  # of docs/paper.md, which says what each is


def read_samples(units: Sequence[Unit], facts: Facts) -> pd.DataFrame:
    """Right answers of all units to the problems of their benchmarks, a line each: `COLUMNS` of
    `tepo.evaluation.statistics.samples`."""
    lines = [(unit.id, name, row_key(unit), unit.seed) for unit in units for name in unit.config.data.benchmarks]
    plan = pd.DataFrame(lines, columns=["run", "benchmark", "row", "seed"])
    scores = facts.scores[facts.scores["run"].isin(set(plan["run"]))]
    counts = scores[["run", "benchmark", "problem", "right", "samples"]].astype({"run": str, "benchmark": str})
    return plan.merge(counts, on=["run", "benchmark"])[list(COLUMNS)]


def record_notes(units: Sequence[Unit], facts: Facts) -> list[str]:
    """Notes about what is read from records, and what could not be."""
    runs = unique(units)
    run_facts = [facts.of(unit.key) for unit in runs]
    read, stale = sum(run.source == "record" for run in run_facts), sum(run.stale for run in run_facts)
    notes = [f"{read} of {counted(len(runs), 'run')} read from records, not from the store."] if read else []
    notes += [
        f"{path} on this machine is another base than the one on record; tables without --records show its runs."
        for path in dict.fromkeys(path for unit in units if unit.recorded_base for path in unit.other_bases)
    ]
    other = "of other settings, another recipe or other problems than today's"
    return notes + ([f"{counted(stale, 'stale record')} not used: {other}."] if stale else [])


def study_table(study: Study, units: Sequence[Unit], facts: Facts) -> Table:
    """The study's rows in order, model after model, with the paper's figures as a second block.

    A sweep: rows x settings first, then the rows setting after setting. A study that tunes: the rows whose settings are
    chosen with a column for the setting, then what tuning found.
    """
    scale = scale_of(units)
    tune = study.tune_at(scale)
    family = family_of(study, units)
    if tune is None:
        return _results(study, scale, units, facts, family)
    shown = reported(units)
    table = _results(study, scale, shown, facts, family) if shown else Table(study.name, study.title, ())
    return with_tuning(table, units, tune, facts)


def _results(study: Study, scale: str, units: Sequence[Unit], facts: Facts, family: int) -> Table:
    """Scores on the benchmarks, with a sweep's blocks before them. family: see `family_of`."""
    rows = grouped((row_key(unit), unit) for unit in units)
    same_as, unlike = same_runs(study, scale, units, facts)
    several = len({row[0].model for row in rows.values()}) > 1
    specs = [_row_spec(key, row, facts, several, same_as.get(key, "")) for key, row in rows.items()]
    references = {key: printed(study, row[0].model, row[0].row) for key, row in rows.items()}
    benchmarks = dict.fromkeys(name for unit in units for name in unit.config.data.benchmarks)
    spec = TableSpec(
        specs,
        {name: name if scale == "laptop" else load_benchmark(name).title for name in benchmarks},
        name=study.name,
        title=study.title,
        baseline=baseline_label(study, units),
        family=family,
        reference={key: reference for key, reference in references.items() if reference is not None},
        notes=[*study.notes, *unlike, *_notes(scale, units, facts)],
    )
    samples = read_samples(units, facts)
    table, complete = build_table(samples, spec), all(facts.of(unit.key).done for unit in units)
    table = replace(table, command="" if complete else fill_command(study, units))
    if specs[0].setting:
        added = sweep_blocks(specs, table.blocks)
        if next(iter(specs[0].setting)) != study.scale(scale).drawn:  # of what is drawn none is chosen
            added = (*added, *lost_blocks(added))
        if study.realised_kl:
            kl_means = {}  # mean over seeds and steps of what a record keeps of each run; rows without runs have none
            for key, row in rows.items():
                steps = [step.get(REALISED_KL) for unit in row for step in facts.lasting(unit.id)]
                if kls := [kl for kl in steps if kl is not None]:
                    kl_means[key] = float(np.mean(kls))
            added = (*added, *realised_kl_blocks(specs, kl_means))
        table = replace(table, blocks=(*added, *table.blocks))
    if study.scale(scale).drawn:
        table = replace(table, blocks=(*environment_blocks(study, scale, units, samples), *table.blocks))
    return table


def baseline_label(study: Study, units: Sequence[Unit]) -> str | None:
    """Label of the study's baseline as shown; None where none of the units is of it."""
    return next((unit.row_label for unit in units if unit.row.label == study.baseline), None)


def _row_spec(key: str, units: Sequence[Unit], facts: Facts, several_models: bool, same_as: str) -> RowSpec:
    """units: of the row, one a seed."""
    first = units[0]
    return RowSpec(
        key,
        first.row_label,
        first.row.objective or UNTRAINED,
        model=first.config.model.name if several_models else "",
        look=first.row.look,
        setting=first.row.setting.point,
        benchmarks=first.config.data.benchmarks,
        endings=tuple(f"seed {unit.seed}: {ending}" for unit in units if (ending := facts.of(unit.id).ending)),
        measured=tuple(f"{unit.id}/{name}" for unit in units for name in sorted(unit.config.data.benchmarks)),
        same_as=same_as,
    )


def _notes(scale: str, units: Sequence[Unit], facts: Facts) -> list[str]:
    """Notes on how the rows were made, and on what a reader must know of their verdicts."""
    steps = sorted({unit.config.train.steps for unit in units})
    seeds = sorted({unit.seed for unit in units if unit.trains})
    trained = (
        f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}, "
        f"{' and '.join(map(str, steps))} step{'' if steps == [1] else 's'}"
    )
    data = " and ".join(dict.fromkeys(unit.config.data.name for unit in units))
    notes = [f"{scale} scale, data {data}, {trained}; checkpoint: the last step, fixed before the run"]
    if scale == "laptop" and 0 < len(seeds) < FEWEST_SEEDS:
        notes.append("At this scale single rows move by 3 points from seed to seed, or from CPU to CPU.")
    columns = dict.fromkeys(unit.config.data.fields.get(SYSTEM, "") for unit in units)
    notes += [
        f"Asked with the system prompt of the column `{column}` of the data; benchmarks too, if all problems share one."
        for column in columns
        if column
    ]
    notes += _rewards([unit for unit in units if unit.trains])
    if differing := mixed([session for unit in unique(units) for session in facts.of(unit.id).made]):
        notes.append(differing)
    measured = [
        (name, measurement)
        for unit in units
        for name in unit.benchmarks
        if (measurement := facts.measurement(unit.id, name)) is not None
    ]
    notes += filter(None, (load_benchmark(name).protocol_note for name in dict.fromkeys(name for name, _ in measured)))
    if given_up := sum(int(measurement.timeouts) for _, measurement in measured):
        notes.append(f"Answers that ran out of the grader's budget and count as wrong: {given_up}.")
    # verdicts on generated problems, integers all, are the same under every revision of the grader (a test says so)
    graders = {(name, revision(measurement.grader)) for name, measurement in measured if measurement.grader}
    earlier = {(name, by) for name, by in graders if by != REVISION and not load_benchmark(name).procedural}
    names, revisions = ", ".join(sorted({name for name, _ in earlier})), {by for _, by in graders if by}
    if earlier:
        judged = _revisions(by for _, by in earlier)
        fix = "`tepo data regrade` judges stored responses again; records hold counts alone."
        notes.append(f"Judged by {judged} of the grader, today's is {REVISION}: {names}. {fix}")
    elif len(revisions) > 1:
        notes.append(f"Judged by {_revisions(revisions)} of the grader, which agree on generated problems.")
    rows = {unit.row.label: unit.row.objective for unit in units if unit.row.objective}
    departures = [
        f"{label} departs from its paper: {text}."
        for label, name in rows.items()
        for text in load_row(name).departs
        if not _READING.match(text)
    ]
    return [*notes, *record_notes(units, facts), *departures]


def _rewards(units: Sequence[Unit]) -> list[str]:
    """Say what rows were rewarded by, where it is not the grader's verdict alone. Shares of reversed rewards that
    differ are an axis of the study, which its rows name."""
    several = len({unit.config.data.flip_rewards for unit in units}) > 1
    data = [replace(unit.config.data, flip_rewards=0.0) if several else unit.config.data for unit in units]
    labels = grouped((rewarded(settings), unit.row_label) for settings, unit in zip(data, units, strict=True))
    if not any(labels):
        return []
    if len(labels) == 1:
        return [f"Rewarded: {text}." for text in labels]
    return [f"Rewarded, {', '.join(dict.fromkeys(rows))}: {text or VERDICT}." for text, rows in labels.items()]


def _revisions(revisions: Iterable[int | None]) -> str:
    """Revisions in words; None is one that is not known."""
    numbers = set(revisions)
    if None in numbers:
        return "another revision"
    words = " and ".join(str(number) for number in sorted(filter(None, numbers)))
    return f"revision{'s' if len(numbers) > 1 else ''} {words}"


def fill_command(study: Study, units: Sequence[Unit]) -> str:
    """`tepo ablate …` with what the units were planned with: scale, seeds, store and overrides."""
    first, store, scale = units[0], units[0].store, scale_of(units)
    words = ["tepo", "ablate", study.name.replace("_", "-"), "--scale", scale]
    seeds = tuple(dict.fromkeys(unit.seed for unit in reported(units) if unit.trains))
    if seeds and set(seeds) != set(study.scale(scale).seeds):
        words += ["--seeds", ",".join(map(str, seeds))]
    if store != _STORE:
        words += ["--store", str(store)]
    # overrides of the plan: what follows the study's own words and stands before the seed
    model_words = () if first.model in study.scale(scale).models else (f"model={first.model}",)
    recipes = recipe_words(study, scale, model_words)
    named = recipes.get((first.model, first.row.name))  # a row that reports its tuned setting does not name it
    recipe = named or max((words for words in recipes.values() if words == first.overrides[: len(words)]), key=len)
    for word in (*model_words, *first.overrides[len(recipe) : -1]):
        words += ["--set", word]
    return shlex.join(words)
