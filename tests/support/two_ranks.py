"""Two ranks as threads that meet at a real barrier."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

Outcome = TypeVar("Outcome")


@dataclass
class Exchange:
    """What two ranks in two threads hold for each other."""

    rank: int
    slots: list[Any]
    meeting: threading.Barrier
    world_size: int = 2

    def all_gather_object(self, value: Any) -> list[Any]:
        self.slots[self.rank] = value
        self.meeting.wait(timeout=120)
        gathered = list(self.slots)
        self.meeting.wait(timeout=120)
        return gathered

    def barrier(self) -> None:
        self.meeting.wait(timeout=120)


def on_two_ranks(work: Callable[[Any], Outcome]) -> list[Outcome]:
    """What the work of each rank returns; it is given the rank's `Exchange`."""
    slots, meeting = [None, None], threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda rank: work(Exchange(rank, slots, meeting)), range(2)))
