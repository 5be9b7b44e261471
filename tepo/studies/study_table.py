"""From the units of a study to its table."""

from collections.abc import Sequence
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
from tepo.reporting.table import Table
from tepo.studies.plan import Unit, unique
from tepo.studies.study import Study, printed

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


def row_key(unit: Unit) -> str:
    """Names a row of a model in the samples."""
    return f"{unit.model}/{unit.label}"


def study_table(study: Study, scale: str, units: Sequence[Unit]) -> Table:
    """The study's rows in order, model after model, with the paper's figures as a second block."""
    models = list(dict.fromkeys(unit.model for unit in units))
    first = {(unit.model, unit.row.label): unit for unit in reversed(units)}
    specs, references = [], {}
    measured: dict[str, tuple[str, ...]] = {}
    for unit in units:
        names = sorted(unit.config.data.benchmarks)
        measured[row_key(unit)] = (*measured.get(row_key(unit), ()), *(f"{unit.id}/{name}" for name in names))
    for model in models:
        for row in study.rows:
            unit = first[model, row.label]
            shown = unit.config.model.name if len(models) > 1 else ""
            specs.append(
                RowSpec(
                    row_key(unit),
                    unit.label,
                    row.objective or UNTRAINED,
                    model=shown,
                    look=row.look,
                    measured=measured[row_key(unit)],
                )
            )
            reference = printed(study, model, row)
            if reference is not None:
                references[row_key(unit)] = reference
    benchmarks = units[0].config.data.benchmarks
    titles = {name: load_benchmark(name).title if scale == "paper" else name for name in benchmarks}
    steps = sorted({unit.config.train.steps for unit in units})
    seeds = sorted({unit.seed for unit in units if unit.row.objective is not None})
    trained = (
        f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}, "
        f"{' and '.join(map(str, steps))} step{'' if steps == [1] else 's'}"
    )
    note = (
        f"{scale} scale, data {units[0].config.data.name}, {trained}; checkpoint: the last step, fixed before the run"
    )
    differing = mixed([session for unit in unique(units) for session in unit.sessions()])
    spec = TableSpec(
        specs,
        titles,
        name=study.name,
        title=study.title,
        baseline=study.baseline and first[models[0], study.baseline].label,
        reference=references,
        notes=[note, *([differing] if differing else []), *_given_up(units)],
    )
    return build_table(read_samples(units), spec)
