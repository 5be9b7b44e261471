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
    match against:
        case "samples":
            values = [row.get(SAMPLES) for row in rows]
        case "kl":
            values = [row.get(KL) for row in rows]
        case _:
            return dict(zip(steps, steps, strict=True))
    if None in values:
        return {}
    return dict(zip(steps, accumulate(values) if against == "kl" else values, strict=True))
