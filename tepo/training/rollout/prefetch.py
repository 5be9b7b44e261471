"""Rollouts of later steps, sampled while the updates of this one go on: `train.staleness` with a sampler that runs
outside of the run.

The sampler keeps the weights that it was given after the step before. A thread samples and grades with them; it shares
no collective with the thread that trains. When both are done, the trainer takes these weights back for a moment, for
the old values of what was sampled. So a run has the rollouts and the values of one that draws and trains in turn.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import replace

import torch
from torch import Tensor, nn

from tepo.common.errors import Diverged
from tepo.store.early_stop import EarlyStop, diverged
from tepo.training.distributed.liveness import Activity
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.rollout.collector import Collector
from tepo.training.rollout.rollout_source import Rollouts, Sampled
from tepo.training.rollout.run_progress import Progress
from tepo.training.rollout_batch import FlatRollout
from tepo.training.update import Updater

_LOOK = 0.25  # seconds between two looks for the thread's end, each of which is a sign of life
_GIVE_UP = 10.0  # seconds for the thread to end by itself when the run fails


class Abandoned(Exception):
    """The thread's end where the training has failed."""


class PrefetchedRollouts(Rollouts):
    """Samples the rollouts of later steps beside the block that `next` yields to.

    beside: a collector whose ranks meet in a process group of its own. behavior: keeps the weights that it samples
    with."""

    def __init__(
        self,
        collector: Collector,
        updater: Updater,
        device: torch.device,
        start: Progress,
        beside: Collector,
        behavior: "BehaviorWeights",
    ):
        super().__init__(collector, updater, device, start)
        self.ahead = 0
        self.beside, self.behavior = beside, behavior

    @contextlib.contextmanager
    def next(self, step: int, metrics: StepMetrics) -> Iterator[FlatRollout]:
        """Yield the rollout of a step, and sample up to that of `staleness` steps later beside the block.

        Raises also what the sampling raises, even where the block raises Diverged or EarlyStop: in turn, the rollouts
        come first. A request to stop is heard after them, as a checkpoint of the step needs them."""
        with super().next(step, metrics) as rollout:
            last = step + self.train.staleness
            if not self._missing(step, last):
                yield rollout
                return
            self.behavior.keep()
            future, failed = Future[Sampled](), threading.Event()

            def never_asked() -> bool:  # to stop
                if failed.is_set():  # before the ranks meet
                    raise Abandoned
                return False

            def run() -> None:
                began = time.perf_counter()
                try:
                    background_metrics = StepMetrics(activity=Activity())
                    sampled = self._sample(replace(self.beside, asked=never_asked), step, last, background_metrics)
                    metrics.seconds["gen_beside"] = time.perf_counter() - began
                    future.set_result(sampled)
                except BaseException as error:  # the other thread raises it
                    future.set_exception(error)

            threading.Thread(target=run, daemon=True, name="sampling ahead").start()
            try:
                yield rollout
            except (Diverged, EarlyStop):
                _await(future, step, metrics)
                raise
            except BaseException:
                failed.set()
                wait([future], _GIVE_UP)
                raise
            if sampled := _await(future, step, metrics):
                with self.behavior.back():
                    self._score(sampled, metrics)


def _await(future: "Future[Sampled]", step: int, metrics: StepMetrics) -> Sampled:
    """Wait for the thread's end. Raises what ended it."""
    before = metrics.seconds.get("gen", 0.0)
    while not future.done():
        with metrics.time("gen"):
            wait([future], _LOOK)
    try:
        sampled = future.result()
    except Diverged as error:  # it sampled with the weights after the step before
        raise diverged(error, step - 1) from error
    waited = metrics.seconds.get("gen", 0.0) - before
    metrics.work.hidden = max(0.0, metrics.seconds["gen_beside"] - waited)
    return sampled


class BehaviorWeights:
    """The weights that the sampler still holds while the trainer goes on from them: a copy in main memory of what this
    rank holds of the trained parameters. Under ZeRO-3 that is its shards."""

    def __init__(self, model: nn.Module):
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._kept: list[Tensor] = []

    @torch.no_grad()
    def keep(self) -> None:
        """Keep the weights as they are now."""
        live = [_held(parameter) for parameter in self.parameters]
        if not self._kept:
            pinned = torch.cuda.is_available()
            self._kept = [torch.empty_like(value, device="cpu", pin_memory=pinned) for value in live]
        for buffer, value in zip(self._kept, live, strict=True):
            buffer.copy_(value)

    @contextlib.contextmanager
    def back(self) -> Iterator[None]:
        """Put the kept weights into the model for the length of the block; on all ranks at once. One tensor at a time
        is held twice."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        """Swap the kept weights and the live ones, in place: optimisers and their flat buffers refer to these
        tensors."""
        states = ((parameter, getattr(parameter, "ds_status", None)) for parameter in self.parameters)
        gathered = [parameter for parameter, status in states if status is not None and status.name == "AVAILABLE"]
        for parameter in gathered:  # which ZeRO-3 has put together on this rank
            parameter.partition()  # type: ignore[attr-defined]
        for parameter, buffer in zip(self.parameters, self._kept, strict=True):
            live = _held(parameter)
            now = live.clone()
            live.copy_(buffer)
            buffer.copy_(now)
        for parameter in gathered:
            parameter.all_gather()  # type: ignore[attr-defined]


def _held(parameter: nn.Parameter) -> Tensor:
    """Part of a parameter that this rank holds, the live tensor."""
    return getattr(parameter, "ds_tensor", parameter).data
