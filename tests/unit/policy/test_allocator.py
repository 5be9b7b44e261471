import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tepo.config.compose import compose
from tepo.policy.model.allocator import grow_segments
from tepo.policy.model.model_location import resolve
from tepo.sampling.backends import sampler_backend
from tepo.sampling.vllm.server_sampler import local_server, serve_command
from tepo.sampling.vllm.vllm_sampler import EngineOptions, vllm_folder
from tests.support.commands import python
from tests.support.processes import children, read

SHAPES = """
import os, resource
import torch
from tepo.policy.model.load_policy import load_policy
load_policy("package:laptop", dtype="bfloat16")
weights = [torch.randn(wide, 576).bfloat16() for wide in (576, 1536)]
peaks = []
for rows in range(300, 660):
    for weight in weights:
        torch.nn.functional.linear(torch.randn(rows, 576).bfloat16(), weight)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(peaks[-1] - peaks[60])
"""


def test_products_of_many_shapes_take_no_more_memory() -> None:
    """Kilobytes beyond those of the first sixty numbers of tokens: 15 to 85 MiB, and 570 where all kernels are kept."""
    assert int(python("-c", SHAPES).stdout) < 256 << 10


@pytest.mark.vllm
def test_the_installed_vllm_switches_growing_segments_off_around_its_pool() -> None:
    """Read in its source: the allocator is CUDA's, which is not here. None grow beside an engine over several GPUs."""
    assert sampler_backend("vllm").segments_may_grow(compose(["sampler=vllm"]))
    assert not sampler_backend("vllm").segments_may_grow(compose(["sampler=vllm", "sampler.tensor_parallel=2"]))
    source = (vllm_folder() / "device_allocator/cumem.py").read_text()
    pool = source[source.index("def use_memory_pool(") :]
    assert pool.index("EXPANDABLE_SEGMENTS, False") < pool.index("yield") < pool.index("set_alloc_conf(prev_conf)")


def server_environments() -> Iterator[str]:
    """Of the vLLM servers that this process has started."""
    for process in children(os.getpid()):
        text = read(process, "environ").replace("\0", "\n")
        if "VLLM_SERVER_DEV_MODE" in text:
            yield text


def test_a_server_has_no_part_in_how_the_trainers_memory_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the user has them grow, an engine over several GPUs sums another way."""
    options = EngineOptions(resolve("package:laptop"), "bfloat16", 64, tensor_parallel=2)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.setenv(name, "")  # put back as it was, though the trainer sets it
        monkeypatch.delenv(name)
    grow_segments()
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert "--disable-custom-all-reduce" not in serve_command(options, tmp_path)[0]
    with local_server(options, log=tmp_path / "log"):
        (environment,) = server_environments()
    assert "PYTORCH_CUDA_ALLOC_CONF" not in environment
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:512,expandable_segments:True")
    assert "--disable-custom-all-reduce" in serve_command(options, tmp_path)[0]
