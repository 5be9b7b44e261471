"""The static key-value cache: rows are compacted in place, capacity grows in steps."""

import torch
from torch import Tensor


class KeyValueCache:
    """Keys and values of every layer, each [rows, kv_heads, capacity, head_dim], zeroed so that masked columns stay finite."""

    def __init__(self, layers: int, rows: int, heads: int, capacity: int, width: int, dtype: torch.dtype, device: torch.device):
        shape = (rows, heads, capacity, width)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]

    @property
    def capacity(self) -> int:
        """Columns (tokens a row can hold)."""
        return self.keys[0].shape[2]

    def resized(self, index: Tensor, capacity: int, used: int) -> "KeyValueCache":
        """A new cache whose row i is row `index[i]` of this one, its first `used` columns kept."""
        layers, (_, heads, _, width) = len(self.keys), self.keys[0].shape
        new = KeyValueCache(layers, len(index), heads, capacity, width, self.keys[0].dtype, self.keys[0].device)
        for old, target in zip(self.keys + self.values, new.keys + new.values, strict=True):
            target[:, :, :used] = old[index, :, :used]
        return new

    def move(self, source: Tensor, target: Tensor, used: int) -> None:
        """Overwrite rows `target` by rows `source`, first `used` columns."""
        for tensor in self.keys + self.values:
            tensor[:, :, :used].index_copy_(0, target, tensor[:, :, :used].index_select(0, source))
