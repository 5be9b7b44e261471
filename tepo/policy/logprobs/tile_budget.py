"""Bytes of logits that the output layer works on at a time. No torch: plans count them too."""

BUDGET = 128 << 20  # up to it the log-probs of all tokens are kept; a tile of more logits has this size
# A GPU of so many bytes has larger tiles, as larger products are faster. On one of 80 GiB the 0.6 GiB that they take
# would make a 1.5B model halve its micro-batches, which costs more.
_LARGE, _LARGE_BUDGET = 100 << 30, 512 << 20


def tile_budget(device_bytes: float) -> int:
    """Bytes of a tile on a GPU of this size (0: a CPU)."""
    return _LARGE_BUDGET if device_bytes >= _LARGE else BUDGET
