"""Key-value cache of the embedded sampler, and its size for the memory planner, which does not wait for torch."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

GROWTH = 64  # columns added to a cache at a time, where it grows
CPU_BYTES = 4 << 30  # of cache on a CPU
RESERVE = 0.1  # of a GPU's memory, left to what a step computes, graphs and fragments


def row_bytes(numbers: int, itemsize: int, tokens: int, *, gpu: bool) -> int:
    """Bytes of one row's cache: `numbers` keys and values of `itemsize` bytes for each of `tokens` tokens, prompt and
    response. A GPU's is made at its full length; a CPU's grows by copying, and is counted twice."""
    return (1 if gpu else 2) * numbers * itemsize * (tokens + GROWTH)


def gpu_cache_bytes(free: float, total: float) -> int:
    """Bytes of cache on a GPU with `free` of `total` bytes left beside weights and optimiser."""
    return max(int(free - RESERVE * total), 0)


_ALIGNED = 16  # elements: 64 bytes of float32


class Arena:
    """One flat buffer handed out in pieces, and once more after `reset`:
    touching fresh pages costs more than the work on them.

    What does not fit is allocated on its own, and the next `reset` makes the buffer large enough for the like. On a GPU
    everything is: torch's allocator there keeps what is freed, and a buffer would be held beside what outgrew it.
    """

    def __init__(self, dtype: "torch.dtype", device: "torch.device"):
        import torch

        self.flat = torch.empty(0, dtype=dtype, device=device)
        self.demand = 0

    def take(self, *shape: int) -> "Tensor":
        """An uninitialised tensor, valid until the next `reset`."""
        size = math.prod(shape)
        start, self.demand = self.demand, self.demand + -(-size // _ALIGNED) * _ALIGNED
        if self.demand > len(self.flat):
            return self.flat.new_empty(shape)
        return self.flat[start : start + size].view(shape)

    def reset(self, keep: int | None = None) -> None:
        """Everything handed out is free again. keep: give the buffer back where it is larger than so many bytes."""
        if keep is not None and max(self.flat.nbytes, self.demand * self.flat.itemsize) > keep:
            self.flat = self.flat.new_empty(0)
        elif self.demand > len(self.flat) and self.flat.device.type == "cpu":
            self.flat = self.flat.new_empty(self.demand)
        self.demand = 0


class KeyValueCache:
    """Keys and values side by side: `data` [layers, rows, kv_heads, capacity, 2, head_dim].
    Columns are to be cleared before use."""

    def __init__(self, arena: Arena, sizes: tuple[int, int, int, int, int]):
        """sizes: layers, rows, kv_heads, capacity, head_dim."""
        layers, rows, heads, capacity, width = sizes
        arena.reset()
        self.arena = arena
        self.data = arena.take(layers, rows, heads, capacity, 2, width)

    @property
    def capacity(self) -> int:
        """Columns: the tokens a row can hold."""
        return self.data.shape[3]

    def move(self, source: "Tensor", target: "Tensor", used: int) -> None:
        """Overwrite rows `target` by rows `source`, first `used` columns.

        Layer by layer: a copy of the rows in all of them may be more than what a full cache leaves of a GPU's memory.
        """
        for layer in self.data:
            view = layer[:, :, :used]
            view[target] = view[source]  # index_select would first copy the whole view

    def grow(self, rows: int, capacity: int) -> None:
        """Keep the first `rows` rows, with room for `capacity` columns."""
        layers, _, heads, used, two, width = self.data.shape
        kept_rows = self.data[:, :rows].clone()
        self.arena.reset()
        self.data = self.arena.take(layers, rows, heads, capacity, two, width)
        self.data[:, :, :, :used] = kept_rows
