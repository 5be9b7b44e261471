from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

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
