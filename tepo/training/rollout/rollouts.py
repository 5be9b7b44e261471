"""The rollouts of coming steps: sampled in turn or, in `ahead`, beside updates; then scored by the trainer."""

from dataclasses import dataclass, replace

import torch

from tepo.store.early_stop import Ended
from tepo.training.batch import FlatRollout
from tepo.training.metrics.step_metrics import Recorder
from tepo.training.rollout.collector import Collector
from tepo.training.rollout.group_stats import Rollout
from tepo.training.rollout.progress import Pending, Progress
from tepo.training.update import Updater


@dataclass(frozen=True, slots=True)
class Sampled:
    """Rollouts that have no old values yet, each with the step that trains it. progress: after they were sampled."""

    progress: Progress
    rollouts: tuple[tuple[int, Rollout], ...] = ()


def sample(collector: Collector, progress: Progress, last: int, recorder: Recorder) -> Sampled:
    """The rollouts up to that of step `last` that do not wait yet, by the policy that the sampler holds.

    Where a step has no mixed group, it and the ones after it are left out, and `Progress.ending` says why. Raises as
    `Collector.collect` else."""
    rollouts = []
    for step in range(progress.step + 1 + len(progress.pending), last + 1):
        if progress.ending is not None:
            break
        try:
            rollout = collector.collect(progress.prompts, step, progress.consumed, recorder)
        except Ended as ended:
            progress = replace(progress, ending=ended.ending)
        else:
            rollouts.append((step, rollout))
            progress = replace(progress, prompts=progress.prompts + rollout.consumed, consumed=rollout.consumed)
    return Sampled(progress, tuple(rollouts))


def score(updater: Updater, sampled: Sampled, device: torch.device, recorder: Recorder) -> Progress:
    """The progress with the sampled rollouts pending. The updater's model has the weights that sampled them."""
    pending = list(sampled.progress.pending)
    for step, rollout in sampled.rollouts:
        flat = FlatRollout(rollout.groups, device)
        recorder.work.sampled += sum(sum(counts.lengths) for counts in rollout.counts)
        with recorder.time("old_log_prob"):
            recorder.work.score(flat, updater.old_values(flat))
            # A rollout that waits is compared now: at its updates, the policy will not be the one that sampled.
            gap = updater.check_drawn(flat, step) if updater.config.train.staleness else {}
        pending.append(Pending(step, flat, rollout.metrics() | gap))
    return replace(sampled.progress, pending=tuple(pending))
