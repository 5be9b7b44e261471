from pathlib import Path

import pytest

from tepo.config.compose import compose
from tepo.jobs.job import RunJob
from tepo.training.run import Run
from tests.support.runs import interrupted, small


def test_steps_that_are_trained_again_count(tmp_path: Path) -> None:
    config = small(tmp_path, "train.checkpoint_every=2")
    run = interrupted(config, step=1)  # before its first checkpoint
    kept, job = run.metrics(), RunJob(Run(config), quiet=True)
    rows = job.train()
    assert rows == run.metrics()
    assert rows[0] != kept[0]
    job.measure(rows)
    assert [cost.steps for cost in run.costs()] == [3]
    assert job.train() == []


def test_who_needs_a_clean_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM after training; of several ranks whatever sampler. The embedded sampler alone does not."""
    kinds = ("torch", "vllm", "vllm_server")
    embedded, vllm, servers = (
        RunJob(Run(compose([f"sampler={kind}", f"store={tmp_path}"])), evaluate=True) for kind in kinds
    )
    assert [job.measures_apart(True) for job in (embedded, vllm, servers)] == [False, True, False]
    assert not vllm.measures_apart(False)
    assert not RunJob(Run(vllm.config)).measures_apart(True)  # nothing is asked
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert all(job.measures_apart(trained) for job in (embedded, vllm) for trained in (True, False))
