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
from contextlib import AbstractContextManager
from dataclasses import replace

from torch import nn

from tepo.common.errors import Diverged
from tepo.store.early_stop import Ended
from tepo.training.distributed.activity import Activity
from tepo.training.metrics.step_metrics import Recorder
from tepo.training.rollout.behavior_weights import Earlier
from tepo.training.rollout.collector import Collector
from tepo.training.rollout.progress import Progress
from tepo.training.rollout.rollouts import Sampled, sample

_LOOK = 0.25  # seconds between two looks for the thread's end, each of which is a sign of life
_GIVE_UP = 10.0  # seconds for the thread to end by itself when the run fails


class Abandoned(Exception):
    """The thread's end where the training has failed."""


class Ahead:
    """Samples ahead with a collector whose ranks meet in a process group of its own. model: the trained one."""

    def __init__(self, collector: Collector, model: nn.Module):
        self._collector, self._earlier = collector, Earlier(model)

    @contextlib.contextmanager
    def sampling(self, progress: Progress, last: int, recorder: Recorder) -> Iterator["Future[Sampled]"]:
        """Sample up to the rollout of step `last` beside what happens in the block; at its end all is there.

        Raises what `sample` raises, also when training ends in the block: in turn, the rollouts come first. A request
        to stop is heard after them, as a checkpoint of the step needs them."""
        done: Future[Sampled] = Future()
        if progress.ending is not None or last <= progress.step + len(progress.pending):
            done.set_result(Sampled(progress))
            yield done
            return
        self._earlier.keep()
        failed = threading.Event()
        collector = replace(self._collector, asked=lambda: _go_on(failed))

        def run() -> None:
            began = time.perf_counter()
            try:
                own = Recorder(activity=Activity())
                sampled = sample(collector, progress, last, own)
                recorder.work.given_up += own.work.given_up
                recorder.seconds["gen_beside"] = time.perf_counter() - began
                done.set_result(sampled)
            except BaseException as error:  # the other thread raises it
                done.set_exception(error)

        threading.Thread(target=run, daemon=True, name="sampling ahead").start()
        try:
            yield done
        except (Diverged, Ended):
            _await(done, recorder)
            raise
        except BaseException:
            failed.set()
            wait([done], _GIVE_UP)
            raise
        _await(done, recorder)

    def weights_of(self, sampled: Sampled) -> AbstractContextManager[None]:
        """The model with the weights that sampled, where anything was; on all ranks at once."""
        return self._earlier.back() if sampled.rollouts else contextlib.nullcontext()


def _await(done: "Future[Sampled]", recorder: Recorder) -> None:
    """Wait for the thread's end. Raises what ended it."""
    before = recorder.seconds.get("gen", 0.0)
    while not done.done():
        with recorder.time("gen"):
            wait([done], _LOOK)
    done.result()
    waited = recorder.seconds.get("gen", 0.0) - before
    recorder.work.hidden = max(0.0, recorder.seconds["gen_beside"] - waited)


def _go_on(failed: threading.Event) -> bool:
    """Never asked to stop. Raises Abandoned, before the ranks meet, where training has failed."""
    if failed.is_set():
        raise Abandoned
    return False
