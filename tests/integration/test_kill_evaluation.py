"""kill -9 during an evaluation of 512 samples, five times: the same rows and scores as undisturbed."""

import json
import signal
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from tepo.evaluation.evaluate import evaluate
from tepo.evaluation.settings import Settings
from tepo.evaluation.writer import Task
from tepo.policy.model.load_policy import load_policy
from tepo.policy.model.model_location import resolve
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.grader import Grader
from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.sampling.stop_tokens import stop_tokens
from tepo.sampling.vllm.server_sampler import VllmServerSampler, local_server
from tepo.sampling.vllm.vllm_sampler import EngineOptions
from tests.integration.commands import OwnSignal, Started
from tests.unit.evaluation.stand_in import LastBox

pytestmark = pytest.mark.disaster


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


def kill_at(folder: Path, more: int) -> OwnSignal:
    """Before the `more`-th change of a file after a part was added."""
    return OwnSignal(signal.SIGKILL, folder, "os.rename */parts/*.parquet", more)


def measure_by_servers(urls: list[str], folder: Path, side_by_side: int | None = None) -> None:
    """Two benchmarks of 400 responses dealt to vLLM servers, stored every few problems. side_by_side: responses under
    way; so many and those of 32 rows more are the most that is stored at once."""
    names = ("max4", "mul3")
    policy = load_policy("package:laptop")
    stop = stop_tokens(policy.model, policy.tokenizer)
    tasks = [Task(load_benchmark(name), LastBox(), folder / name) for name in names]
    with closing(VllmServerSampler(urls, stop, max_length=128, exchange=folder / "exchange")) as sampler:
        sampler.side_by_side = side_by_side or sampler.side_by_side
        evaluate(tasks, sampler, policy.tokenizer, Settings(limit=100, rows_per_part=32))


@pytest.mark.vllm
def test_kills_of_an_evaluation_on_two_servers(tmp_path: Path) -> None:
    """Which engine draws a response, and beside which others, changes its log-probs by rounding and nothing else."""
    engine = EngineOptions(resolve("package:laptop"), "float32", 128)
    with ExitStack() as stack:
        logs = [tmp_path / f"log{number}" for number in range(2)]
        starting = [stack.enter_context(local_server(engine, log=log, cpu=True)) for log in logs]
        urls = [ready() for ready in starting]
        kept: dict[str, int] = {}
        for more in (2, 3):
            at = kill_at(tmp_path, more)
            process = Started(measure_by_servers, urls, tmp_path / "killed", 64, own_signal=at).end()
            assert process.returncode == -signal.SIGKILL, process.stderr
            assert kept.items() < both(tmp_path).items(), "a finished part was sampled again, or none was added"
            kept = both(tmp_path)
        for folder, some in (("killed", urls), ("alone", urls[1:])):
            done = Started(measure_by_servers, some, tmp_path / folder).end()
            assert done.returncode == 0, done.stderr
    for name in ("max4", "mul3"):
        killed, alone = (pq.read_table(tmp_path / folder / name / "samples.parquet") for folder in ("killed", "alone"))
        assert alone.num_rows == 400
        assert np.allclose(killed["logprob"], alone["logprob"], atol=1e-3)
        assert killed.drop_columns("logprob").equals(alone.drop_columns("logprob"))


def both(folder: Path) -> dict[str, int]:
    """Finished parts of both benchmarks and when each was written."""
    return {f"{name}/{part}": at for name in ("max4", "mul3") for part, at in parts(folder / "killed" / name).items()}


def test_five_kills_change_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    kept: dict[str, int] = {}
    for more in range(1, 6):
        done = Started(measure, folder, own_signal=kill_at(tmp_path, more)).end()
        assert done.returncode == -signal.SIGKILL, done.stderr
        found = parts(folder)
        assert kept.items() < found.items(), "a finished part was sampled again, or none was added"
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
