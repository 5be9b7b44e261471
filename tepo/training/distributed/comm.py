"""Collectives over the ranks of a run, as those that use them see them."""

from typing import Any, Protocol

from tepo.objectives.batch import Collectives


class Comm(Collectives, Protocol):
    """Collectives over the ranks of a run; None stands for a single process wherever a Comm is taken."""

    rank: int
    world_size: int

    def all_gather_object(self, value: Any) -> list[Any]:
        """Picklable values of all ranks in rank order."""
        ...

    def barrier(self) -> None:
        """Wait for all ranks."""
        ...
