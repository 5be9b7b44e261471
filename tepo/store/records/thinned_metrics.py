"""The metrics of a run as a record keeps them: what is drawn, with few digits; what is summed or chosen by, at every
step.

    {"steps": 36,
     "every": {"training/responses": [616, 560, …]},           # what each step added; the other sums too
     "drawn": {"critic/score/mean": [0.297, …]},               # of a long run only some of the steps: `_drawn_steps`
     "validated": {"5": {"val-core/average": 0.734375}}}       # by step, exact
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise, zip_longest
from typing import Any

_STEP, _RESPONSES = "training/global_step", "training/responses"
_SUMMED = {"perf/cpu_s": 2, "perf/cpu_core_s": 2, "actor/realised_kl_k3": 2}  # metric: digits
_DRAWN = {
    "critic/score/mean": 6,  # this and the entropy decide claims too
    "actor/entropy": 6,
    "actor/pg_clipfrac": 2,
    "actor/grad_norm": 3,
    "response_length/mean": 3,
    "timing_s/step": 2,
}
_COSTS = ("perf/cpu", "timing_s/")
BEST = "critic/score/best@"
_BEST = re.compile(rf"{BEST}(\d+)$")  # figures show the two largest
_VALIDATED = ("val-core/", "val-aux/", "start/val-")
_POINTS = 60  # of a curve, about: more are not seen

Metrics = Mapping[str, Any]


def pack(rows: Sequence[Mapping[str, Any]]) -> Metrics:
    """rows: of metrics.jsonl, one a step from 1 on."""
    every = {name: _column(rows, name, digits) for name, digits in _SUMMED.items()}
    if all(_RESPONSES in row for row in rows):
        every[_RESPONSES] = [int(new - old) for old, new in pairwise([0, *(row[_RESPONSES] for row in rows)])]
    steps = _drawn_steps(len(rows))
    best = sorted({int(match[1]) for row in rows for name in row if (match := _BEST.match(name))})[-2:]
    digits = _DRAWN | {f"critic/score/best@{size}": 3 for size in best}
    drawn = {name: _column([rows[step - 1] for step in steps], name, count) for name, count in digits.items()}
    validated = {
        str(step): part
        for step, row in enumerate(rows, start=1)
        if (part := {name: value for name, value in row.items() if name.startswith(_VALIDATED)})
    }
    return {"steps": len(rows), "every": _known(every), "drawn": _known(drawn), "validated": validated}


def unpack(metrics: Metrics) -> list[dict[str, Any]]:
    """A mapping a step. Raises ValueError, TypeError or KeyError for what `pack` did not make."""
    rows: list[dict[str, Any]] = [{_STEP: step} for step in range(1, metrics["steps"] + 1)]
    columns = dict(metrics["every"])
    if _RESPONSES in columns:
        columns[_RESPONSES] = list(accumulate(columns[_RESPONSES]))
    for name, values in columns.items():
        _spread(rows, name, values)
    shown = [rows[step - 1] for step in _drawn_steps(len(rows))]
    for name, values in metrics["drawn"].items():
        _spread(shown, name, values)
    for step, part in metrics["validated"].items():
        rows[int(step) - 1].update(part)
    return rows


def differing_step(one: Metrics, other: Metrics) -> int:
    """The first step at which two runs differ in what is kept of them, but for their costs; 0 where none does."""
    rows, others = (list(map(_lasting, unpack(metrics))) for metrics in (one, other))
    return next((step for step, pair in enumerate(zip_longest(rows, others), start=1) if pair[0] != pair[1]), 0)


def _lasting(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith(_COSTS)}


def _drawn_steps(steps: int) -> list[int]:
    """The first, the last, and every so many between: the same for runs of the same length."""
    apart = max(1, steps // _POINTS)
    return sorted({*range(1, steps + 1, apart), *([steps] if steps else [])})


def _column(rows: Iterable[Mapping[str, Any]], name: str, digits: int) -> list[float | None]:
    """The rounded values of a metric, as integers where they are: shorter."""
    shorts = [None if (value := row.get(name)) is None else float(f"{value:.{digits}g}") for row in rows]
    return [int(short) if short is not None and short.is_integer() else short for short in shorts]


def _known(columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Without the metrics that no step has."""
    return {name: values for name, values in columns.items() if any(value is not None for value in values)}


def _spread(rows: Sequence[dict[str, Any]], name: str, values: Sequence[float | None]) -> None:
    for row, value in zip(rows, values, strict=True):
        if value is not None:
            row[name] = value
