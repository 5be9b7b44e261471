import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tepo.config.compose import compose
from tepo.policy.model.allocator import grow_segments
from tepo.policy.model.model_location import resolve
from tepo.sampling.backends import sampler_backend
from tepo.sampling.vllm.server_sampler import local_server, serve_command
from tepo.sampling.vllm.vllm_sampler import EngineOptions, vllm_folder
from tests.support.commands import python
from tests.support.processes import children, read

NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")

_FAULTS = """
import resource, sys, torch
from tepo.policy.model.allocator import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit("no glibc")
def work():
    held = [torch.ones(2**20) for _ in range(6)]
for _ in range(3):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    # glibc's own threshold rises by itself, or not, as the heap happens to lie
    done = python("-c", _FAULTS, mode, code=None, MALLOC_MMAP_THRESHOLD_="131072")
    if "no glibc" in done.stderr:
        pytest.skip("the C library is not glibc")
    return int(done.stdout)


def test_memory_that_is_kept_costs_no_page_faults():
    assert faults("keep") < 0.1 * faults("plain")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_segments_grow_unless_the_user_has_said_something(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "max_split_size_mb:512")
        grow_segments()
        assert os.environ[name] == "max_split_size_mb:512"
        monkeypatch.delenv(name)
    grow_segments()
    assert os.environ.pop("PYTORCH_CUDA_ALLOC_CONF") == "expandable_segments:True"


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


def test_an_allocator_that_has_started_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the variable once, when CUDA starts, which choosing the layout may have made it do."""
    told: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append)
    grow_segments()
    assert told == [os.environ.pop("PYTORCH_CUDA_ALLOC_CONF")] == ["expandable_segments:True"]


@pytest.mark.vllm
def test_the_installed_vllm_switches_growing_segments_off_around_its_pool() -> None:
    """Read in its source: the allocator is CUDA's, which is not here."""
    folder = vllm_folder()
    assert sampler_backend("vllm").segments_may_grow(compose(["sampler=vllm"]))
    source = (folder / "device_allocator/cumem.py").read_text()
    pool = source[source.index("def use_memory_pool(") :]
    assert pool.index("EXPANDABLE_SEGMENTS, False") < pool.index("yield") < pool.index("set_alloc_conf(prev_conf)")


@pytest.mark.vllm
def test_no_segments_grow_beside_an_engine_over_several_gpus() -> None:
    assert not sampler_backend("vllm").segments_may_grow(compose(["sampler=vllm", "sampler.tensor_parallel=2"]))


def server_environments() -> Iterator[str]:
    """Of the vLLM servers that this process has started."""
    for process in children(os.getpid()):
        text = read(process, "environ").replace("\0", "\n")
        if "VLLM_SERVER_DEV_MODE" in text:
            yield text


def test_a_server_has_no_part_in_how_the_trainers_memory_grows(tmp_path: Path) -> None:
    options = EngineOptions(resolve("package:laptop"), "bfloat16", 64, tensor_parallel=2)
    grow_segments()
    try:
        assert "--disable-custom-all-reduce" not in serve_command(options, tmp_path)[0]
        with local_server(options, log=tmp_path / "log"):
            (environment,) = server_environments()
    finally:
        del os.environ["PYTORCH_CUDA_ALLOC_CONF"]
    assert "PYTORCH_CUDA_ALLOC_CONF" not in environment


@pytest.mark.parametrize(("gpus", "without"), [(1, False), (2, True)])
def test_where_the_user_has_them_grow_an_engine_sums_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, without: bool
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:512,expandable_segments:True")
    command, _ = serve_command(EngineOptions(str(tmp_path), "bfloat16", 64, tensor_parallel=gpus), tmp_path)
    assert ("--disable-custom-all-reduce" in command) == without
