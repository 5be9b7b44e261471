"""How much key-value cache the embedded sampler may take: counted here for the sampler and for the memory planner
alike."""

GROWTH = 64  # columns added to a cache at a time, where it grows
CPU_BYTES = 4 << 30  # of cache on a CPU
RESERVE = 0.1  # of a GPU's memory, left to what a step computes, graphs and fragments


def row_bytes(numbers: int, itemsize: int, tokens: int, *, gpu: bool) -> int:
    """Bytes of one row's cache: `numbers` keys and values of `itemsize` bytes for each of `tokens` tokens, prompt and
    response.

    A GPU's cache is made at its full length. A CPU's grows by copying and is counted twice, for the moment in which it
    does.
    """
    return (1 if gpu else 2) * numbers * itemsize * (tokens + GROWTH)


def gpu_cache_bytes(free: float, total: float) -> int:
    """Bytes of cache on a GPU with `free` of `total` bytes left beside weights and optimiser."""
    return max(int(free - RESERVE * total), 0)
