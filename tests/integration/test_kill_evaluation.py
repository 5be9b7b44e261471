"""kill -9 during an evaluation of 512 samples, five times at random: the same rows and scores as undisturbed."""

import json
import random
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from tepo.evaluation.begun import Task
from tepo.evaluation.evaluate import evaluate
from tepo.evaluation.settings import Settings
from tepo.policy.load_policy import load_policy
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.grader import Grader
from tepo.sampling.torch_sampler import TorchSampler
from tests.integration.commands import Started, until


def measure(folder: Path) -> None:
    torch.set_num_threads(1)
    policy, benchmark = load_policy("package:laptop"), load_benchmark("mul3")
    with Grader(benchmark.grader) as grader:
        sampler = TorchSampler(policy.model, policy.tokenizer)
        task = Task(benchmark, grader, folder)
        evaluate([task], sampler, policy.tokenizer, Settings(limit=128, rows_per_part=16))


def parts(folder: Path) -> dict[str, int]:
    """Finished parts and when each was written."""
    return {path.name: path.stat().st_mtime_ns for path in (folder / "parts").glob("*.parquet")}


@pytest.mark.slow
def test_five_kills_change_nothing(tmp_path: Path) -> None:
    draw, folder = random.Random(5), tmp_path / "killed"
    kept: dict[str, int] = {}
    for _ in range(5):
        process = Started(measure, folder)
        until(lambda kept=kept: len(parts(folder)) > len(kept), process)  # a part was added …
        time.sleep(draw.random() * 0.05)  # … and then anywhere in the next ones
        process.kill()
        assert not (folder / "result.json").exists(), "finished before it could be killed"
        found = parts(folder)
        assert kept.items() <= found.items(), "a finished part was sampled again"
        assert len(found) > len(kept)
        kept = found
    for place in (folder, tmp_path / "whole"):
        done = Started(measure, place).end()
        assert done.returncode == 0, done.stderr
    killed, whole = (pq.read_table(place / "samples.parquet") for place in (folder, tmp_path / "whole"))
    assert whole.num_rows == 512
    assert killed.equals(whole)
    assert json.loads((folder / "result.json").read_text()) == json.loads(
        (tmp_path / "whole" / "result.json").read_text()
    )
