from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tepo.sampling.embedded.kv_cache import Arena, KeyValueCache

LAYERS, HEADS, WIDTH = 6, 2, 4


class Largest(TorchDispatchMode):
    """Notes the most numbers of a tensor that is made beside the cache."""

    def __init__(self, cache: Tensor) -> None:
        super().__init__()
        self.cache, self.numbers = cache.untyped_storage().data_ptr(), 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = operator(*args, **(kwargs or {}))
        for made in out if isinstance(out, (list, tuple)) else [out]:
            if made.untyped_storage().data_ptr() != self.cache:
                self.numbers = max(self.numbers, made.numel())
        return out


def test_moved_rows_keep_their_tokens_and_are_copied_a_layer_at_a_time():
    """Beside a cache that fills a GPU there is no room for a copy of many rows in all layers."""
    arena = Arena(torch.float32, torch.device("cpu"))
    cache = KeyValueCache(arena, (LAYERS, 8, HEADS, 10, WIDTH))
    cache.data.copy_(torch.arange(cache.data.numel()).view_as(cache.data))
    before, used = cache.data.clone(), 7
    source, target = torch.tensor([5, 6, 7]), torch.tensor([0, 2, 3])
    with Largest(cache.data) as largest:
        cache.move(source, target, used)
    expected = before.clone()
    expected[:, target, :, :used] = before[:, source, :, :used]
    assert torch.equal(cache.data, expected)
    assert largest.numbers == len(source) * HEADS * used * 2 * WIDTH
