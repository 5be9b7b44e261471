"""The static key-value cache: rows are compacted in place, capacity grows in steps."""

import torch
from torch import Tensor


class KeyValueCache:
    """Keys and values side by side: `data` [layers, rows, kv_heads, capacity, 2, head_dim], zeroed so that masked columns stay finite."""

    def __init__(self, data: Tensor):
        self.data = data

    @classmethod
    def empty(cls, layers: int, rows: int, heads: int, capacity: int, width: int, *, dtype: torch.dtype, device: torch.device) -> "KeyValueCache":
        """Room for `capacity` tokens of each row."""
        return cls(torch.zeros(layers, rows, heads, capacity, 2, width, dtype=dtype, device=device))

    @property
    def capacity(self) -> int:
        """Columns: the tokens a row can hold."""
        return self.data.shape[3]

    def layer(self, index: int, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        """Views of the keys and of the values of the first rows and columns, each [rows, kv_heads, columns, head_dim]."""
        part = self.data[index, :rows, :, :columns]
        return part[..., 0, :], part[..., 1, :]

    def expanded(self, rows: Tensor, capacity: int) -> "KeyValueCache":
        """A cache whose row i is a copy of row `rows[i]`, with room for `capacity` columns (at least the present ones)."""
        layers, _, heads, used, _, width = self.data.shape
        new = KeyValueCache.empty(layers, len(rows), heads, capacity, width, dtype=self.data.dtype, device=self.data.device)
        new.data[:, :, :, :used] = self.data[:, rows]
        return new

    def move(self, source: Tensor, target: Tensor, used: int) -> None:
        """Overwrite rows `target` by rows `source`, first `used` columns."""
        view = self.data[:, :, :, :used]
        view[:, target] = view[:, source]  # index_select would first copy the whole view

    def grow(self, rows: int, capacity: int) -> None:
        """Keep the first `rows` rows, with room for `capacity` columns."""
        layers, _, heads, used, _, width = self.data.shape
        data = self.data.new_zeros(layers, rows, heads, capacity, 2, width)
        data[:, :, :, :used] = self.data[:, :rows]
        self.data = data
