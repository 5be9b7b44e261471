"""Weights as files for sampling servers."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

BUCKET = 512 << 20  # bytes


def write_weights(weights: Mapping[str, Tensor], folder: Path, bucket: int = BUCKET) -> None:
    """Write safetensors files of about `bucket` bytes each, one while the tensors of the next are read. So two of them
    are in main memory at a time, and not the full model. The tensors do not change meanwhile."""
    writing: Future[None] | None = None
    with ThreadPoolExecutor(1) as writer:
        for number, tensors in enumerate(_buckets(weights, bucket)):
            if writing is not None:
                writing.result()
            writing = writer.submit(save_file, tensors, folder / f"model-{number:05d}.safetensors")
        if writing is not None:
            writing.result()


def _buckets(weights: Mapping[str, Tensor], bucket: int) -> Iterator[dict[str, Tensor]]:
    """Consecutive tensors in main memory, of at least `bucket` bytes but for the last ones."""
    tensors: dict[str, Tensor] = {}
    size, storages = 0, set[int]()
    for name in weights:
        value = weights[name].detach().to("cpu").contiguous()
        if value.data_ptr() in storages:
            value = value.clone()  # safetensors refuses shared storage: tied tensors are written twice
        storages.add(value.data_ptr())
        tensors[name] = value
        size += value.nbytes
        if size >= bucket:
            yield tensors
            tensors, size, storages = {}, 0, set()
    if tensors:
        yield tensors
