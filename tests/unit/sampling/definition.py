"""The distribution that a token is drawn from, to the letter of `SamplingParams`: numbers and loops."""

import math
from collections.abc import Sequence
from typing import Any

from tepo.sampling.sampler import SamplingParams


def distribution(logits: Sequence[float], params: SamplingParams) -> list[float]:
    """The probability of each token, at a temperature above 0."""
    weights = [math.exp(logit / params.temperature - max(logits) / params.temperature) for logit in logits]
    weights = _scaled([weight if weight >= params.min_p * max(weights) else 0.0 for weight in weights])
    if params.top_k:
        least = sorted(weights, reverse=True)[: params.top_k][-1]
        weights = _scaled([weight if weight >= least else 0.0 for weight in weights])
    likelier = [math.fsum(other for other in weights if other > weight) for weight in weights]
    return _scaled([weight if sum_ < params.top_p else 0.0 for weight, sum_ in zip(weights, likelier, strict=True)])


def _scaled(weights: Sequence[float]) -> list[float]:
    return [weight / math.fsum(weights) for weight in weights]


FILTERS: dict[str, dict[str, Any]] = {
    "qwen3": {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
    "non-thinking": {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
    "r1": {"temperature": 0.6, "top_p": 0.95},
    "top_k": {"temperature": 1.3, "top_k": 5},
    "min_p": {"temperature": 1.0, "min_p": 0.2},
    # the next two are other sets of tokens in transformers' order (top_k, top_p, min_p), and with top_p before top_k
    "min_p first": {"temperature": 1.3, "min_p": 0.1, "top_p": 0.8},
    "all": {"temperature": 1.7, "min_p": 0.1, "top_k": 9, "top_p": 0.9},
    "one": {"temperature": 1.0, "top_p": 1e-9},
}
