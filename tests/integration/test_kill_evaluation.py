"""kill -9 during an evaluation by two servers: the same rows as undisturbed (by `tepo eval`: test_eval_command.py)."""

import signal
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tepo.evaluation.evaluate import evaluate
from tepo.evaluation.settings import Settings
from tepo.evaluation.writer import EvaluationTask
from tepo.policy.model.load_policy import load_policy
from tepo.policy.model.model_location import resolve
from tepo.problems.benchmarks import load_benchmark
from tepo.sampling.stop_tokens import stop_tokens
from tepo.sampling.vllm.server_sampler import VllmServerSampler, local_server
from tepo.sampling.vllm.vllm_sampler import EngineOptions
from tests.support.commands import OwnSignal, Started
from tests.support.samplers import LastBox

pytestmark = pytest.mark.disaster


def measure_by_servers(urls: list[str], folder: Path, side_by_side: int | None = None) -> None:
    """Two benchmarks of 400 responses dealt to vLLM servers, stored every few problems. side_by_side: responses under
    way; so many and those of 32 rows more are the most that is stored at once."""
    names = ("max4", "mul3")
    policy = load_policy("package:laptop")
    stop = stop_tokens(policy.model, policy.tokenizer)
    tasks = [EvaluationTask(load_benchmark(name), LastBox(), folder / name) for name in names]
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
            at = OwnSignal(signal.SIGKILL, tmp_path, "os.rename */parts/*.parquet", more)
            Started(measure_by_servers, urls, tmp_path / "killed", 64, own_signal=at).end(code=-signal.SIGKILL)
            assert kept.items() < both(tmp_path).items(), "a finished part was sampled again, or none was added"
            kept = both(tmp_path)
        for folder, some in (("killed", urls), ("alone", urls[1:])):
            Started(measure_by_servers, some, tmp_path / folder).end()
    for name in ("max4", "mul3"):
        killed, alone = (pq.read_table(tmp_path / folder / name / "samples.parquet") for folder in ("killed", "alone"))
        assert alone.num_rows == 400
        assert np.allclose(killed["logprob"], alone["logprob"], atol=1e-3)
        assert killed.drop_columns("logprob").equals(alone.drop_columns("logprob"))


def both(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in (folder / "killed").glob("*/parts/*.parquet")}
