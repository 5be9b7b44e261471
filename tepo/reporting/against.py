"""What training curves may be drawn against: steps, or what like is compared with like by."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

STEP = "training/global_step"
SAMPLES, KL = "training/responses", "actor/realised_kl_k3"
AXES = {
    "steps": "training step",
    "samples": "responses drawn",
    "kl": "realised KL of the rollouts, summed (nats per token)",
}


def positions(rows: Sequence[Mapping[str, Any]], against: str) -> dict[float, float]:
    """Step -> where its point lies on the axis; rows: of metrics.jsonl, of which those before a step count in a sum.
    Empty where the rows do not hold what the axis needs."""
    steps = [float(row.get(STEP, index)) for index, row in enumerate(rows, start=1)]
    if against == "steps":
        return dict(zip(steps, steps, strict=True))
    metric = SAMPLES if against == "samples" else KL
    if not all(metric in row for row in rows):
        return {}
    values = [float(row[metric]) for row in rows]
    return dict(zip(steps, values if against == "samples" else accumulate(values), strict=True))
