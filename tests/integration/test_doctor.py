"""`tepo doctor` as a user runs it: every installed engine for real."""

from pathlib import Path

import pytest
import torch

from tepo.launch.sbatch import cluster
from tepo.policy.kernel_check import CHECKS
from tests.integration import slurm_cluster
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


@pytest.mark.slurm
@pytest.mark.disaster
def test_a_slurm_cluster_that_answers_takes_a_job_and_one_that_is_down_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with slurm_cluster.cluster():
        assert cluster() == ("partitions main*; a job is accepted", "")
        monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
        said, fix = cluster() or ("", "")
        assert said.startswith("partitions main*; a job is refused: ")
        assert "partition" in said.partition("refused")[2]
        assert fix.startswith("name what the cluster asks for")
    monkeypatch.setenv("SLURM_CONF", "/nonexistent/slurm.conf")
    said, fix = cluster() or ("", "")
    assert said.startswith("no cluster answers: ")
    assert "slurmctld" in fix


def test_without_slurm_nothing_is_said_of_a_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cluster() is None


@pytest.mark.gpu
@pytest.mark.disaster
def test_on_a_gpu_its_kernels_are_exact() -> None:
    lines = [line for line in tepo("doctor").stdout.splitlines() if line.startswith("GPU, ")]
    assert [line.endswith(": works") for line in lines] == [True] * len(CHECKS), lines
