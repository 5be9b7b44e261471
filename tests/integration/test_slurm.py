"""Dispatch through a real Slurm: an array of runs, one that fails while the others go on, requeue after preemption. One
trains an objective with a Python file of the user's own."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tepo.training.run_folder import RunFolder
from tests.integration.commands import Started, started, until
from tests.integration.slurm_cluster import cluster
from tests.unit.training.small import SMALL, few_problems, lasting, small

STUDY = """\
title: two good rows and one that fails
rows:
  - {label: good, objective: grpo_dapo}
  - {label: bad, objective: grpo_dapo, overrides: [sampler.gap_bound=1e-12]}
  - {label: also good, objective: my_spo}
scales:
  laptop: {models: [laptop], seeds: [0], overrides: [%s]}
"""


OWN = Path(__file__).parents[2] / "examples" / "own_method"


def study(folder: Path, *overrides: str) -> dict[str, str]:
    shutil.copytree(OWN, folder, dirs_exist_ok=True)
    (folder / "ablations").mkdir()
    words = [*SMALL, "'data.benchmarks=[max4]'", *overrides]
    (folder / "ablations" / "mixed.yaml").write_text(STUDY % ", ".join(words))
    few_problems(folder)
    return {"TEPO_PATH": "."}  # of the folder in which the command is given


def ablate(store: Path, env: dict[str, str]) -> Started:
    words = ("ablate", "mixed", "--store", store, "--launcher", "slurm", "--partition", "main")
    return started(*words, cwd=store.parent, **env)


def test_no_slurm_here_is_one_message(tmp_path: Path) -> None:
    env = study(tmp_path) | {"PATH": "/nowhere"}
    done = ablate(tmp_path / "runs", env).end()
    assert done.returncode == 2
    assert "no Slurm on this machine" in done.stderr


@pytest.mark.slurm
@pytest.mark.slow
def test_an_array_with_a_failing_run_and_a_preempted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster():
        env = study(tmp_path, "train.steps=10")
        process = ablate(tmp_path / "runs", env)
        good = RunFolder.of(
            small(
                tmp_path / "runs",
                "scale=laptop",
                "model=laptop",
                "objective=grpo_dapo",
                "train.steps=10",
                "data.benchmarks=[max4]",
            )
        )
        until(lambda: len(good.metrics()) >= 2, process, 180)
        assert process.poll() is None, process.end()
        running = subprocess.run(
            ["squeue", "-h", "-t", "R", "-o", "%i"], capture_output=True, text=True, check=True
        ).stdout.split()
        for job in running:  # what Slurm does on preemption
            subprocess.run(["scontrol", "requeue", job], check=True)
        done = process.end()
        assert done.returncode == 1, done.stderr
        assert "1 of the runs failed" in done.stderr
        assert "bad seed 0" in done.stderr
        assert "sampler and trainer disagree" in done.stderr
        finished = [path.parents[2].name for path in (tmp_path / "runs").glob("*/eval/max4/result.json")]
        monkeypatch.setenv("TEPO_PATH", str(tmp_path))
        words = ("scale=laptop", "model=laptop", "train.steps=10", "data.benchmarks=[max4]")
        own = RunFolder.of(small(tmp_path / "runs", *words, "objective=my_spo"))
        assert set(finished) == {good.path.name, own.path.name}
        (kept,) = own.config()["full"]["objective"]["kinds"].values()
        assert kept == (tmp_path / "kinds" / "spo.py").read_text()
        assert len(own.metrics()) == 10
        assert (good.path / "log.txt").exists()
        whole = RunFolder.of(
            small(tmp_path / "whole", "scale=laptop", "model=laptop", "objective=grpo_dapo", "train.steps=10")
        )
        from tepo.training.loop import train

        train(small(tmp_path / "whole", "scale=laptop", "model=laptop", "objective=grpo_dapo", "train.steps=10"))
        assert lasting(good.path) == lasting(whole.path)


@pytest.mark.slurm
@pytest.mark.slow
def test_jobs_that_no_node_can_start_are_not_waited_for(tmp_path: Path) -> None:
    """Slurm holds them for an administrator; the command used to wait without a word."""
    with cluster(starts_jobs=False):
        done = ablate(tmp_path / "runs", study(tmp_path, "train.steps=1")).end()
        assert done.returncode == 1, done.stderr
        assert "3 of the runs failed" in done.stderr
        assert "launch failed requeued held" in done.stderr
        waiting = subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True).stdout
        assert waiting == ""
