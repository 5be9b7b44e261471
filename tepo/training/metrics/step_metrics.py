"""Metrics of a step: timings, means over its tokens and updates, values of single tokens for the token view."""

import contextlib
import time
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from tepo.formula.formula import Bounds
from tepo.objectives import Loss, Metrics, TokenBatch
from tepo.objectives.batch import all_sum
from tepo.objectives.functions import segment_sum
from tepo.training.distributed.comm import Comm
from tepo.training.distributed.liveness import ACTIVITY, Activity
from tepo.training.metrics.throughput import TokenCounts
from tepo.training.metrics.token_dump import KeptTokens, per_token
from tepo.training.resources.memory import TAKEN
from tepo.training.rollout_batch import MiniBatch


class PolicyDrift:
    """Sums over the tokens and sequences of the last mini-batch, from log-probs that its loss needs anyway: those
    before the last update. Kept on the device until `metrics`."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None  # float64 [8]

    @torch.no_grad()
    def add(self, batch: TokenBatch, log_ratio: Tensor) -> None:
        """Add one micro-batch; log_ratio: d = log pi - log pi_old [N], of tokens that pi_old sampled."""
        d, lengths = log_ratio.double(), batch.lengths
        means = segment_sum(d, lengths) / lengths.clamp(min=1)
        full = d.new_zeros(()) if batch.full_kl is None else batch.full_kl.detach().double().sum()
        counts = torch.stack([torch.tensor(len(d), device=d.device), (lengths > 0).sum()]).double()
        of_tokens = [d.sum(), d.square().sum(), (torch.expm1(d) - d).sum(), full]
        sums = torch.cat([counts, torch.stack([*of_tokens, means.sum(), means.square().sum()])])
        self._sums = sums if self._sums is None else self._sums + sums

    def metrics(self, clip: Bounds | None, comm: Comm | None, *, exact: bool) -> dict[str, float]:
        """Metrics over all ranks. clip: of the objective. exact: whether `full_kl` was the KL to the policy that
        sampled."""
        assert self._sums is not None
        tokens, sequences, d, square, k3, full, mean, mean_square = all_sum(self._sums, comm).tolist()
        of_tokens = _sd(d, square, tokens)
        of_sequences = _sd(mean, mean_square, sequences)
        figures = {
            "actor/realised_kl_k1": -d / tokens,
            "actor/realised_kl_k3": k3 / tokens,
            "actor/log_ratio_sd": of_tokens,
            "actor/sequence_log_ratio_sd": of_sequences,
        }
        if exact:
            figures["actor/realised_kl_reverse"] = full / tokens
        spread = of_sequences if clip is not None and clip.of == "sequence" else of_tokens
        if clip is not None and spread > 0:
            figures |= {f"actor/clip_{side}_over_sd": bound / spread for side, bound in clip.bounds.items()}
        return figures


def _sd(total: float, squares: float, count: float) -> float:
    """Standard deviation of all values there are, without Bessel's correction."""
    return max(squares / count - (total / count) ** 2, 0.0) ** 0.5


class StepMetrics:
    """Collects the metrics of one step. Keeps tensors without reading them, so that a GPU need not wait; they are read
    once a step.

    tokens: where `keep_tokens`, those of the step's last mini-batch, the one furthest from the policy that sampled.
    activity: of the thread that it times.
    """

    CORE = ("gen", "old_log_prob", "update_actor")

    def __init__(self, keep_tokens: bool = False, activity: Activity = ACTIVITY) -> None:
        self.keep_tokens, self.activity = keep_tokens, activity
        self.tokens: list[KeptTokens] = []
        self.updates = 0
        self.drift = PolicyDrift()
        self.seconds: dict[str, float] = {}
        self.taken: dict[str, int] = {}
        self.work = TokenCounts()
        self._metrics: Metrics | None = None
        self._values: dict[str, list[float | Tensor]] = {}
        self._core_cpu = 0.0
        self._started, self._cpu_started = time.perf_counter(), time.process_time()
        activity.section = "step"

    @contextlib.contextmanager
    def time(self, section: str) -> Iterator[None]:
        """Add the wall seconds of a block to a section, and its CPU seconds to those of `CORE`. On a GPU, keep how much
        of it is taken at the end, which is the peak: torch keeps what it frees until the next sync."""
        begin, cpu = time.perf_counter(), time.process_time()
        try:
            with self.activity.inside(section):
                yield
        finally:
            self.seconds[section] = self.seconds.get(section, 0.0) + time.perf_counter() - begin
            self._core_cpu += (time.process_time() - cpu) * (section in self.CORE)
            if torch.cuda.is_initialized():
                free, total = torch.cuda.mem_get_info()
                self.taken[section] = max(self.taken.get(section, 0), total - free)

    def add(self, mini_batch: MiniBatch, indices: list[int], batch: TokenBatch, out: Loss) -> None:
        """Add one micro-batch: its indices in the mini-batch, its tensors and its loss."""
        self._metrics = out.metrics if self._metrics is None else self._metrics + out.metrics
        if mini_batch.last:
            self.drift.add(batch, out.tokens["log_ratio"])
        if self.keep_tokens and mini_batch.last:
            self.tokens.append((mini_batch.sequences_at(indices), per_token(batch, out)))

    def add_update(self, values: Mapping[str, float | Tensor]) -> None:
        """Add figures of one update, equal on all ranks."""
        self.updates += 1
        for name, value in values.items():
            self._values.setdefault(name, []).append(value)

    def means(self, comm: Comm | None) -> dict[str, float]:
        """Means over tokens and updates, over all ranks."""
        assert self._metrics is not None
        updates = {name: float(np.mean([float(value) for value in values])) for name, values in self._values.items()}
        return self._metrics.means(comm) | updates

    def timings(self) -> dict[str, float]:
        """Wall seconds by section under verl's names `timing_s/*`;
        CPU seconds of all of the step, and of sampling, log-probs and updates in it; on a GPU the GiB of each section.
        """
        step = time.perf_counter() - self._started
        cpu = {"perf/cpu_s": time.process_time() - self._cpu_started, "perf/cpu_core_s": self._core_cpu}
        seconds = {f"timing_s/{name}": value for name, value in self.seconds.items()}
        memory_gib = {f"{TAKEN}{name}": value / 2**30 for name, value in self.taken.items()}
        return seconds | {"timing_s/step": step} | cpu | memory_gib
