import os
import subprocess
import sys

import pytest

from tepo.policy.allocator import grow_segments
from tepo.sampling.samplers import sampler_backend
from tepo.sampling.vllm_sampler import vllm_folder

_FAULTS = """
import resource, sys, torch
from tepo.policy.allocator import keep_freed_memory
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
    fixed = os.environ | {
        "MALLOC_MMAP_THRESHOLD_": "131072"
    }  # glibc's own threshold rises by itself, or not, as the heap happens to lie
    done = subprocess.run([sys.executable, "-c", _FAULTS, mode], capture_output=True, text=True, env=fixed)
    if "no glibc" in done.stderr:
        pytest.skip("the C library is not glibc")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_memory_that_is_kept_costs_no_page_faults():
    assert faults("keep") < 0.1 * faults("plain")


def test_segments_grow_unless_the_user_has_said_something(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.setenv(name, "max_split_size_mb:512")
        grow_segments()
        assert os.environ[name] == "max_split_size_mb:512"
        monkeypatch.delenv(name)
    grow_segments()
    assert os.environ.pop("PYTORCH_CUDA_ALLOC_CONF") == "expandable_segments:True"


@pytest.mark.vllm
def test_the_installed_vllm_switches_growing_segments_off_around_its_pool() -> None:
    """Read in its source: the allocator is CUDA's, which is not here."""
    folder = vllm_folder()
    assert sampler_backend("vllm").segments_may_grow()
    source = (folder / "device_allocator/cumem.py").read_text()
    pool = source[source.index("def use_memory_pool(") :]
    assert pool.index("EXPANDABLE_SEGMENTS, False") < pool.index("yield") < pool.index("set_alloc_conf(prev_conf)")
