"""The ranks of a run as threads of one process, to check what must not depend on their number."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")
_SECONDS = 60.0  # a rank that never comes has failed, or asks for other collectives than the rest


class SimulatedRank:
    """One rank's `Collectives`: each collective waits for all ranks."""

    def __init__(self, rank: int, values: list[Any], barrier: threading.Barrier):
        self.rank, self.world_size, self._values, self._barrier = rank, len(values), values, barrier

    def all_gather(self, value: Tensor) -> list[Tensor]:
        return self.all_gather_object(value)

    def all_gather_object(self, value: Any) -> list[Any]:
        self._values[self.rank] = value
        self._barrier.wait(_SECONDS)
        values = list(self._values)
        self._barrier.wait(_SECONDS)  # before anyone writes again
        return values

    def all_sum(self, value: Tensor) -> Tensor:
        first, *others = self.all_gather(value)
        return sum(others, first)

    def barrier(self) -> None:
        self.all_gather_object(None)


def on_ranks(work: Callable[[SimulatedRank], T], number: int = 2) -> list[T]:
    """Run `work` on each of the ranks and return its results. Raises what the first failing rank raises."""
    values, barrier = [None] * number, threading.Barrier(number)

    def run(rank: int) -> T:
        try:
            return work(SimulatedRank(rank, values, barrier))
        except BaseException:
            barrier.abort()  # the others would wait for a rank that is gone
            raise

    with ThreadPoolExecutor(number) as pool:
        futures = [pool.submit(run, rank) for rank in range(number)]
    failed = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(failed, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]
