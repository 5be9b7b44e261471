"""The rollouts of a run, one for each step: drawn in turn with the updates, or beside them (`prefetch`)."""

import contextlib
from collections.abc import Iterator, Sequence

import torch

from tepo.store.early_stop import Best, EarlyStop, check_rewards
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.rollout.collector import Collector
from tepo.training.rollout.group_stats import Rollout
from tepo.training.rollout.run_progress import Progress
from tepo.training.rollout_batch import FlatRollout
from tepo.training.update import Updater

REWARD = "critic/score/mean"
Sampled = Sequence[tuple[int, Rollout]]  # rollouts without old values, each with the step that trains it


class Rollouts:
    """Draws the rollout of each step, and takes its old values while the policy is still the one that sampled.

    With `train.staleness` = k, a step draws what the step k later trains.

    ahead: k, the number of rollouts drawn beyond the step that is trained.
    waiting: the rollouts drawn and not yet trained, in the order of their steps.
    prompts: number drawn so far. consumed: those of the last rollout. rewards: mean reward of each step so far.
    early_stop: why no more is drawn; what waits is trained first.
    """

    def __init__(self, collector: Collector, updater: Updater, device: torch.device, start: Progress):
        self.collector, self.updater, self.device = collector, updater, device
        self.train = collector.config.train
        self.ahead = self.train.staleness
        self.prompts, self.consumed, self.rewards = start.prompts, start.consumed, start.rewards
        self.waiting, self.early_stop = list(start.pending), start.early_stop

    def progress(self, step: int, best: Best | None = None) -> Progress:
        """Progress after a step, for a checkpoint."""
        return Progress(step, self.prompts, self.consumed, tuple(self.waiting), self.rewards, best, self.early_stop)

    @contextlib.contextmanager
    def next(self, step: int, metrics: StepMetrics) -> Iterator[FlatRollout]:
        """Yield the rollout of a step to a block that updates the policy on it.

        Raises EarlyStop where there is none, as no group of the step is mixed, or where the rewards have stayed below
        the base's; else as `Collector.collect`."""
        sampled = self._sample(self.collector, step, step + self.ahead, metrics)
        self.collector.sampler.sleep()
        self._score(sampled, metrics)
        if not self.waiting:
            assert self.early_stop is not None
            raise self.early_stop
        self.rewards = (*self.rewards, self.waiting[0].metrics[REWARD])
        check_rewards(self.rewards, self.train.collapse_window)
        yield self.waiting[0]
        del self.waiting[0]

    def _missing(self, step: int, last: int) -> range:
        """Steps up to `last` whose rollouts are not drawn yet, in step `step`."""
        first = step + len(self.waiting)
        return range(first, first if self.early_stop else min(last, self.train.steps) + 1)

    def _sample(self, collector: Collector, step: int, last: int, metrics: StepMetrics) -> Sampled:
        """Sample the rollouts up to that of step `last`, by the policy that the sampler holds. Where a step has no
        mixed group, it and the ones after it are left out."""
        sampled = []
        for number in self._missing(step, last):
            try:
                rollout = collector.collect(self.prompts, number, self.consumed, metrics)
            except EarlyStop as stop:
                self.early_stop = stop.with_traceback(None)  # whose frames would keep what was in flight
                break
            sampled.append((number, rollout))
            self.prompts, self.consumed = self.prompts + rollout.consumed, rollout.consumed
        return sampled

    def _score(self, sampled: Sampled, metrics: StepMetrics) -> None:
        """Take the old values of rollouts, which then wait for their step. The model has the weights that sampled."""
        for step, rollout in sampled:
            flat = FlatRollout(rollout.groups, self.device, step, rollout.metrics())
            metrics.work.sampled += sum(rollout.lengths)
            with metrics.time("old_log_prob"):
                metrics.work.score(flat, self.updater.compute_old_logprobs(flat))
                # A rollout that waits is compared now: at its updates, the policy will not be the one that sampled.
                flat.metrics |= self.updater.check_drawn(flat) if self.train.staleness else {}
            self.waiting.append(flat)
