"""`tepo doctor` as a user runs it: every installed engine for real."""

import pytest
import torch

from tepo.policy.kernel_check import CHECKS
from tests.integration.commands import tepo


@pytest.mark.disaster
@pytest.mark.vllm
@pytest.mark.deepspeed
def test_every_engine_works() -> None:
    done = tepo("doctor", OMP_NUM_THREADS="1")
    outcomes = [line for line in done.stdout.splitlines() if line.startswith("sampler=")]
    assert len(outcomes) == 3
    assert all("works: sampled, updated, synced, saved and resumed" in line for line in outcomes), outcomes
    (own,) = (line for line in outcomes if line.startswith("sampler=vllm "))
    assert "and measured, in bfloat16, in" in own
    assert ("it never slept, which takes a GPU" in own) == (not torch.cuda.is_available())
    if not torch.cuda.is_available():
        assert "GPU part: not run, there is no GPU here" in done.stdout


def test_without_its_self_test_it_says_that_the_gpu_part_was_not_run() -> None:
    done = tepo("doctor", "--no-selftest")
    assert "GPU part: not run (--no-selftest)" in done.stdout


@pytest.mark.gpu
@pytest.mark.disaster
def test_on_a_gpu_its_kernels_are_exact() -> None:
    lines = [line for line in tepo("doctor").stdout.splitlines() if line.startswith("GPU, ")]
    assert [line.endswith(": works") for line in lines] == [True] * len(CHECKS), lines
