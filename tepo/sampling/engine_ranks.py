"""Ranks that hold one sampling engine together: which engine a rank has, and how the ranks of an engine keep in step.

Under vLLM's external launcher each rank of a tensor-parallel group has a scheduler of its own and a part of the
weights. All of them add the same requests in the same order and make the same steps, each of which meets in the
collectives of a forward pass. So whatever depends on a clock or on a single rank is agreed on here first.
"""

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


class _Ranks(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class EngineOfRank:
    """The engine that a rank holds."""

    index: int  # its number
    count: int  # of engines
    leads: bool  # whether this rank's results count; the others of its engine have the same ones

    @classmethod
    def of(cls, comm: _Ranks | None, size: int) -> "EngineOfRank":
        """comm: None in a single process. size: ranks of an engine; they are neighbours, as vLLM forms its groups."""
        if comm is None:
            return cls(0, 1, leads=True)
        return cls(comm.rank // size, comm.world_size // size, comm.rank % size == 0)

    def share(self, values: Sequence[T]) -> Sequence[T]:
        """Part for this engine of values that all engines share."""
        return values[self.index :: self.count]


class Lockstep:
    """The ranks of this process's engine, once vLLM has formed its groups; alone, they agree at no cost. What they say
    goes over gloo, beside the work of a GPU."""

    def __init__(self, size: int):
        self.size, self.index, self.first, self.group = size, 0, 0, None
        if size > 1:
            from vllm.distributed.parallel_state import get_tp_group

            ranks = get_tp_group()
            self.index, self.first, self.group = ranks.rank_in_group, ranks.first_rank, ranks.cpu_group

    def agreed(self, value: bool) -> bool:
        """The value of the first rank."""
        if self.size == 1:
            return value
        flag = torch.tensor(int(value))
        dist.broadcast(flag, self.first, self.group)
        return bool(flag)

    def gathered(self, value: T) -> list[T]:
        """The picklable values of all ranks of the engine, in their order."""
        values: list[Any] = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value, self.group)
        return values


def forget_shared_memory(size: int) -> None:
    """Take its name from the memory that this rank shares with those of its engine on a CPU. vLLM names it by their
    ranks and the number of their group, and starts only where there is none of that name; a process that was killed
    leaves one behind. Who has joined keeps the memory. The number is the run's port: two runs of one machine would take
    each other's."""
    if size > 1 and not torch.cuda.is_available():
        from vllm.distributed import parallel_state

        rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
        parallel_state._group_name_counter["tp"] = port
        first = rank // size * size
        group = glob.escape(f"[{'-'.join(map(str, range(first, first + size)))}]-cpushm_{rank - first}")
        for segment in Path("/dev/shm").glob(f"*-tp:{port}-{group}"):
            segment.unlink(missing_ok=True)
