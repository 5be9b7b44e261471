"""Weights in files of a bounded size: all of them, bit for bit."""

import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tepo.sampling.vllm import server_sampler
from tepo.sampling.vllm.server_sampler import write_weights


@pytest.mark.parametrize(("bucket", "files"), [(1, 4), (500, 2), (10_000, 1)])
def test_every_tensor_is_in_one_file(tmp_path: Path, bucket: int, files: int) -> None:
    """Tied ones too, which share memory, and those whose numbers do not lie in order."""
    random = torch.Generator().manual_seed(0)
    table = torch.randn(10, 12, generator=random)
    weights = {
        "embed": table,
        "norm": torch.randn(3, generator=random).bfloat16(),
        "turned": torch.randn(4, 5, generator=random).T,
        "lm_head.weight": table,
    }
    write_weights(weights, tmp_path, bucket)
    written = [load_file(file) for file in sorted(tmp_path.iterdir())]
    assert len(written) == files
    together = {name: value for part in written for name, value in part.items()}
    assert together.keys() == weights.keys()
    assert sum(map(len, written)) == len(weights)
    for name, value in weights.items():
        assert together[name].dtype == value.dtype
        assert torch.equal(together[name], value)


FILE = 5000  # bytes


class Counted(dict[str, int]):
    """Tensors of so many numbers, each made when it is read. most: bytes of them that were alive at once."""

    def __init__(self, sizes: dict[str, int]):
        super().__init__(sizes)
        self.alive = self.most = 0

    def __getitem__(self, name: str) -> Any:
        numbers = np.zeros(super().__getitem__(name), dtype=np.float32)
        self.alive += numbers.nbytes
        self.most = max(self.most, self.alive)
        weakref.finalize(numbers, self.gone, numbers.nbytes)  # held by every view of the tensor
        return torch.from_numpy(numbers)

    def gone(self, size: int) -> None:
        self.alive -= size


def test_two_files_of_them_are_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And for a moment a third, which the thread that has written it lets go of in its own time."""

    def slowly(*arguments: Any) -> None:
        time.sleep(0.02)  # in which all could be read
        save_file(*arguments)

    monkeypatch.setattr(server_sampler, "save_file", slowly)
    weights = Counted({f"layer{index}": 250 for index in range(40)})
    write_weights(weights, tmp_path, FILE)
    assert len(list(tmp_path.iterdir())) == 8
    assert FILE <= weights.most <= 3 * FILE
    assert weights.alive == 0


def test_a_write_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="No such file"):
        write_weights({"a": torch.zeros(4)}, tmp_path / "missing", 1)
