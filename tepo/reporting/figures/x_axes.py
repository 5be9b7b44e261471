"""Axes that training curves may be drawn over: steps, or a measure by which like is compared with like."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

STEP = "training/global_step"
SAMPLES, KL = "training/responses", "actor/realised_kl_k3"
AXES = {
    "steps": "training step",
    "samples": "responses drawn",
    "tokens": "tokens sampled",
    "time": "wall time of the steps (seconds)",
    "kl": "realised KL of the rollouts, summed (nats per token)",
}
SUMMED = {"tokens": "perf/sampled_tokens", "time": "timing_s/step", "kl": KL}
"""Axes that are the sum of a metric over the steps."""


def positions(rows: Sequence[Mapping[str, Any]], against: str) -> dict[float, float]:
    """Step -> where its point lies on the axis; rows: of metrics.jsonl, of which those before a step count in a sum.
    Empty where the rows do not hold what the axis needs."""
    steps = [float(row.get(STEP, index)) for index, row in enumerate(rows, start=1)]
    if against == "steps":
        return dict(zip(steps, steps, strict=True))
    metric = SUMMED.get(against, SAMPLES)
    if not all(metric in row for row in rows):
        return {}
    values = [float(row[metric]) for row in rows]
    return dict(zip(steps, accumulate(values) if against in SUMMED else values, strict=True))
