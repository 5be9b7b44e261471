"""From the units of a study to its table."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from tepo.errors import UserError
from tepo.evaluation.result import load_result
from tepo.evaluation.rows import SAMPLES
from tepo.problems.benchmarks import load_benchmark
from tepo.reporting.build import RowSpec, build_table
from tepo.reporting.table import Table
from tepo.studies.plan import Unit
from tepo.studies.study import Study, printed

COLUMNS = ["problem", "sample", "correct"]


def read_samples(units: Sequence[Unit]) -> pd.DataFrame:
    """Graded responses of all measured units: columns row, seed, benchmark, problem, sample, correct."""
    frames = []
    for unit in units:
        for name in unit.config.data.benchmarks:
            frame = _measured(unit.folder / "eval" / name)
            if frame is not None:
                frames.append(frame.assign(row=row_key(unit), seed=unit.seed, benchmark=name))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["row", "seed", "benchmark", *COLUMNS])


def _measured(folder: Path) -> pd.DataFrame | None:
    """COLUMNS of a finished evaluation. Raises UserError when they are not what its result was computed from: nobody should believe such a table."""
    result = load_result(folder)
    if result is None:
        return None
    try:
        frame = pd.read_parquet(folder / SAMPLES, columns=COLUMNS)
        right = frame["correct"].to_numpy(bool) if not frame["correct"].hasnans else None
    except (OSError, ValueError, TypeError) as error:  # pyarrow's own are among them
        raise UserError(f"the samples cannot be read: {str(error).splitlines()[0]}", where=str(folder / SAMPLES), fix=f"move {folder} away and measure it anew") from None
    if right is None or frame["problem"].nunique() != result.problems or abs(right.mean() - result.accuracy) > 1e-9:
        raise UserError("the samples are not those behind the result: problems or verdicts differ", where=str(folder / SAMPLES), fix=f"`tepo regrade {folder}`, or move it away and measure it anew")
    return frame


def row_key(unit: Unit) -> str:
    """Names a row of a model in the samples."""
    return f"{unit.model}/{unit.row.label}"


def study_table(study: Study, scale: str, units: Sequence[Unit]) -> Table:
    """The study's rows in order, model after model, with the paper's figures as a second block."""
    models = list(dict.fromkeys(unit.model for unit in units))
    first = {(unit.model, unit.row.label): unit for unit in reversed(units)}
    specs, references = [], {}
    for model in models:
        for row in study.rows:
            unit = first[model, row.label]
            specs.append(RowSpec(row_key(unit), row.label, row.objective or "base", model=model if len(models) > 1 else ""))
            reference = printed(study, model, row)
            if reference is not None:
                references[row_key(unit)] = reference
    benchmarks = units[0].config.data.benchmarks
    titles = {name: load_benchmark(name).title if scale == "paper" else name for name in benchmarks}
    steps = sorted({unit.config.train.steps for unit in units})
    seeds = sorted({unit.seed for unit in units if unit.row.objective is not None})
    note = f"{scale} scale, data {units[0].config.data.name}, seeds {', '.join(map(str, seeds))}, {' and '.join(map(str, steps))} steps; checkpoint: the last step, fixed before the run"
    return build_table(read_samples(units), specs, titles, name=study.name, title=study.title, baseline=study.baseline, reference=references, notes=[note])
