"""`tepo doctor` as a user runs it: every installed engine for real."""

import pytest

from tests.integration.commands import tepo


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.deepspeed
def test_every_engine_works() -> None:
    done = tepo("doctor", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = [line for line in done.stdout.splitlines() if line.startswith("sampler=")]
    assert len(outcomes) == 3
    assert all("works: sampled, updated, synced, saved and resumed in" in line for line in outcomes), outcomes
