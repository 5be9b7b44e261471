"""The curves of a study with `curve:`, read from its runs, and their fits."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from tepo.common.errors import UserError
from tepo.evaluation.statistics.scaling_comparison import CurveRule, RowFit, RunCurve, compare_rows, fit_row
from tepo.evaluation.statistics.scaling_fit import Curve
from tepo.reporting.tables.scaling_table import CurveRow, curve_block, curve_notes
from tepo.reporting.tables.table import Block
from tepo.store.evaluation_result import AVERAGE
from tepo.studies.plan import Unit
from tepo.studies.study import CurveSettings, Study
from tepo.training.validation import START

_COMPUTE = {"samples": "training/responses", "steps": "training/global_step", "cpu": "perf/cpu_core_s"}


def rule(curve: CurveSettings) -> CurveRule:
    return CurveRule(curve.margin / 100, curve.factor, curve.share)


def curve_rows(study: Study, units: Sequence[Unit]) -> list[CurveRow]:
    """Trained rows in order, those of a model and setting judged against their baseline, all as one family.

    Raises UserError for runs whose curve cannot be fitted."""
    assert study.curve
    first: dict[str, Unit] = {}
    runs: dict[str, dict[int, RunCurve]] = {}
    for unit in units:
        if unit.row.objective is not None:
            first.setdefault(_key(unit), unit)
            if unit.trained():
                runs.setdefault(_key(unit), {})[unit.seed] = read_run(unit, study.curve)
    fits = {key: _fit_row(study.curve, first[key], part) for key, part in runs.items()}
    baselines = {_group(unit): key for key, unit in first.items() if unit.row.label == study.baseline}
    others = {key: baselines[_group(unit)] for key, unit in first.items() if unit.row.label != study.baseline}
    judged = compare_rows(fits, runs, others, rule(study.curve))
    several = len({unit.model for unit in first.values()}) > 1
    return [
        CurveRow(
            key, f"{unit.label}, {unit.model}" if several else unit.label, unit.row.objective or "", unit.row.look,
            runs.get(key, {}), fits.get(key), judged.get(key),
        )
        for key, unit in first.items()
    ]  # fmt: skip


def curve_part(study: Study, units: Sequence[Unit]) -> tuple[Block, list[str]]:
    """The block of a study's table with its fits, and the notes to it."""
    assert study.curve
    shown = curve_rows(study, units), rule(study.curve), study.curve.over
    return curve_block(*shown), curve_notes(*shown, study.curve.start)


def _key(unit: Unit) -> str:
    return f"{unit.model}/{unit.label}"


def _group(unit: Unit) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The model and setting."""
    return unit.model, tuple(unit.row.setting.point.items())


def _fit_row(curve: CurveSettings, unit: Unit, runs: dict[int, RunCurve]) -> RowFit:
    try:
        return fit_row(runs, rule(curve))
    except ValueError as error:
        where, fix = f"row {unit.label!r}", "more steps, or a smaller train.validate_every"
        raise UserError(f"no curve can be fitted: {error}", where=where, fix=fix) from None


def read_run(unit: Unit, curve: CurveSettings) -> RunCurve:
    """Raises UserError where the run was not validated as curves need it."""
    rows = unit.run.metrics()
    compute = [float(row[_COMPUTE[curve.over]]) for row in rows if _COMPUTE[curve.over] in row]
    names = [name for name in rows[0] if name.startswith(f"{START}val-aux/")] if rows else []
    if not names or len(compute) < len(rows):
        what = "the run does not hold its validation problem by problem, from the untrained policy on"
        raise UserError(what, where=str(unit.folder), fix="move it away, and train it again with this version")
    at = list(accumulate(compute)) if curve.over == "cpu" else compute
    fitted = [i for i, row in enumerate(rows) if AVERAGE in row and at[i] >= curve.after * at[-1]]
    scores = np.array([rows[i][AVERAGE] for i in fitted], dtype=float)
    problems = {name: _shares(name, [rows[i] for i in fitted], rows[0]) for name in names}
    start = float(rows[0][START + AVERAGE]) if curve.start == "measured" else None
    return RunCurve(
        Curve(start, np.array([at[i] for i in fitted], dtype=float), scores), problems, str(unit.run.ending() or "")
    )


def _shares(name: str, rows: Sequence[dict[str, Any]], first: dict[str, Any]) -> np.ndarray:
    """[n + 1, P] of one benchmark, untrained and at each score."""
    counts = [first[name], *(row[name.removeprefix(START)] for row in rows)]
    return np.array(counts, dtype=float) / int(name.rpartition("@")[2])
