import os
import subprocess
import sys

import pytest

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
