"""From the units of a study to its table."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tepo.errors import UserError
from tepo.evaluation.result import load_result
from tepo.evaluation.rows import SAMPLES
from tepo.problems.benchmarks import load_benchmark
from tepo.reporting.build_table import RowSpec, TableSpec, build_table
from tepo.reporting.colours import UNTRAINED
from tepo.reporting.made_by import mixed
from tepo.reporting.sensitivity import sensitivity_blocks
from tepo.reporting.sweep import sweep_blocks
from tepo.reporting.table import Table
from tepo.studies.curve_study import curve_part
from tepo.studies.plan import Unit, unique
from tepo.studies.study import Study, printed
from tepo.studies.tuned_table import with_tuning

COLUMNS = ["problem", "sample", "correct"]


def read_samples(units: Sequence[Unit]) -> pd.DataFrame:
    """Graded responses of all measured units: columns row, seed, benchmark, problem, sample, correct."""
    measured = [
        (row_key(unit), unit.seed, name, table)
        for unit in units
        for name in unit.config.data.benchmarks
        if (table := _measured(unit.run.evaluation(name))) is not None
    ]
    if not measured:
        return pd.DataFrame(columns=["row", "seed", "benchmark", *COLUMNS])
    *keys, tables = zip(*measured, strict=True)
    frame = pa.concat_tables(tables, promote_options="permissive").to_pandas()
    lengths = [len(table) for table in tables]
    for index, (name, values) in enumerate(zip(("row", "seed", "benchmark"), keys, strict=True)):
        frame.insert(index, name, pd.Series(values).repeat(lengths).to_numpy())
    return frame


def _measured(folder: Path) -> pa.Table | None:
    """COLUMNS of a finished evaluation.

    Raises UserError when they are not what its result was computed from: nobody should believe such a table.
    """
    result = load_result(folder)
    if result is None:
        return None
    try:
        table = pq.read_table(folder / SAMPLES, columns=COLUMNS)
        right = table["correct"].to_numpy().astype(bool) if not table["correct"].null_count else None
    except (OSError, ValueError, TypeError, NotImplementedError) as error:  # pyarrow's own are among them
        raise UserError(
            f"the samples cannot be read: {str(error).splitlines()[0]}",
            where=str(folder / SAMPLES),
            fix=f"move {folder} away and measure it anew",
        ) from None
    if right is None or len(table["problem"].unique()) != result.problems or abs(right.mean() - result.accuracy) > 1e-9:
        raise UserError(
            "the samples are not those behind the result: problems or verdicts differ",
            where=str(folder / SAMPLES),
            fix=f"`tepo regrade {folder}`, or move it away and measure it anew",
        )
    return table


def _given_up(units: Sequence[Unit]) -> list[str]:
    """A note if the grader gave answers up."""
    results = [load_result(unit.run.evaluation(name)) for unit in units for name in unit.config.data.benchmarks]
    total = sum(result.timeouts or 0 for result in results if result)
    return [f"Answers that ran out of the grader's budget and count as wrong: {total}."] if total else []


def _endings(units: Sequence[Unit], first: Unit) -> tuple[str, ...]:
    """Of the row that a unit belongs to: its runs that ended before their last step."""
    seeds = [unit for unit in units if row_key(unit) == row_key(first) and unit.row.objective is not None]
    return tuple(f"seed {unit.seed}: {ending}" for unit in seeds if (ending := unit.run.ending()))


def row_key(unit: Unit) -> str:
    """Names a row of a model in the samples."""
    return f"{unit.model}/{unit.label}"


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
    titles = {name: load_benchmark(name).title if scale == "paper" else name for name in benchmarks}
    steps = sorted({unit.config.train.steps for unit in units})
    seeds = sorted({unit.seed for unit in units if unit.row.objective is not None})
    trained = (
        f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}, "
        f"{' and '.join(map(str, steps))} step{'' if steps == [1] else 's'}"
    )
    data = " and ".join(dict.fromkeys(unit.config.data.name for unit in units))
    note = f"{scale} scale, data {data}, {trained}; checkpoint: the last step, fixed before the run"
    differing = mixed([session for unit in unique(units) for session in unit.sessions()])
    spec = TableSpec(
        specs,
        titles,
        name=study.name,
        title=study.title,
        baseline=next((unit.row_label for unit in units if unit.row.label == study.baseline), None),
        reference=references,
        notes=[note, *([differing] if differing else []), *_given_up(units)],
    )
    samples = read_samples(units)
    table = build_table(samples, spec)
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
