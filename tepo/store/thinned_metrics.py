"""The metrics of a run as a record keeps them: what is drawn, with few digits; what is summed or chosen by, at every
step."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_STEP = "training/global_step"
COUNT = "training/responses"  # whole numbers
_SUMMED = {COUNT: 15, "perf/cpu_s": 2, "perf/cpu_core_s": 2, "actor/realised_kl_k3": 2}  # metric: digits
_DRAWN = {  # of a long run only at some of the steps
    "critic/score/mean": 6,  # this and the entropy decide claims too
    "actor/entropy": 6,
    "actor/pg_clipfrac": 2,
    "actor/grad_norm": 3,
    "response_length/mean": 3,
    "timing_s/step": 2,
}
BEST = "critic/score/best@"
_BEST = re.compile(rf"{BEST}(\d+)$")  # figures show the two largest
_VALIDATED = ("val-core/", "start/val-core/")  # exact
_POINTS = 60  # of a curve, about: more are not seen


def thinned(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A mapping a step. rows: of metrics.jsonl, one a step from 1 on. What is thin already stays as it is."""
    largest = sorted({int(match[1]) for row in rows for name in row if (match := _BEST.match(name))})[-2:]
    drawn = _DRAWN | {f"{BEST}{size}": 3 for size in largest}
    apart = max(1, len(rows) // _POINTS)  # the same for runs of the same length
    kept = []
    for number, row in enumerate(rows):
        shown = number % apart == 0 or number == len(rows) - 1
        digits = {_STEP: 15, **_SUMMED, **(drawn if shown else {})}
        thin = {name: float(f"{row[name]:.{count}g}") for name, count in digits.items() if row.get(name) is not None}
        exact = {name: value for name, value in row.items() if name.startswith(_VALIDATED)}
        kept.append(thin | {_STEP: int(row[_STEP])} | exact)
    return kept
