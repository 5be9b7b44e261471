"""A step's diagnostics, added over micro-batches, mini-batches and ranks before they become means."""

import numpy as np
from torch import Tensor

from tepo.objectives import Loss, Metrics, TokenBatch
from tepo.training.engine import Comm


class Tallies:
    """Collects tensors without reading them, so that a GPU need not wait; `means` reads them once a step."""

    def __init__(self) -> None:
        self._metrics: Metrics | None = None
        self._values: dict[str, list[float]] = {}
        self.gap: list[
            tuple[Tensor, Tensor]
        ] = []  # sampler's and trainer's log-probs of tokens scored before the first update

    def add(self, out: Loss, batch: TokenBatch, first: bool) -> None:
        """One micro-batch. `first` marks the mini-batch whose log-probs are still those of the sampling policy."""
        self._metrics = out.metrics if self._metrics is None else self._metrics + out.metrics
        if first and batch.sampler_logprobs is not None and batch.logprobs is not None:
            self.gap.append((batch.sampler_logprobs, batch.logprobs.detach()))

    def add_values(self, values: dict[str, float]) -> None:
        """Figures of one update, equal on all ranks."""
        for name, value in values.items():
            self._values.setdefault(name, []).append(value)

    def means(self, comm: Comm | None) -> dict[str, float]:
        """Means over tokens and updates, over all ranks."""
        assert self._metrics is not None
        return self._metrics.means(comm) | {name: float(np.mean(values)) for name, values in self._values.items()}
