import json
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tepo.store.run_folder import final_model
from tepo.store.run_id import base_id
from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.commands import python, started, until
from tests.support.decoys import executed, lay
from tests.support.processes import children, runs, words_of
from tests.support.runs import small, write

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.disaster]
BENCHMARKS = {
    "greedy": "seed: 5}\ncount: 24\nsamples: 1\ntemperature: 0",
    "drawn": "seed: 6}\ncount: 6\nsamples: 4\ntemperature: 1",
}


def evaluated(folder: Path, model: Path, *words: str, before: str = "") -> Path:
    """The folder of the evaluations that the command made of a model. before: another that is measured first."""
    for name, text in BENCHMARKS.items():
        head = f"title: {name}\nprocedural: {{tasks: {{add3: 1, gcd: 1}}, "
        write(folder / f"evals/{name}.yaml", f"{head}{text}\nmax_new_tokens: 72\n")
    store = folder / "-".join(["runs", *words, *before.split(":")]).replace("--", "")
    models = [part for one in (before, str(model)) if one for part in ("--model", one)]
    known = {"TEPO_PATH": str(folder), "VLLM_LOGGING_LEVEL": "INFO", "PYTHONWARNINGS": "default"}  # else no log
    command = ("-P", "-m", "tepo_cli", "eval", "greedy", "drawn")  # -P: as an installed command, not from this folder
    done = python(*command, *models, "--store", store, "--quiet", *words, cwd=folder, **known)
    assert done.stdout.count("│ greedy ") == len(models) / 2
    assert (done.stdout + done.stderr).count("Initializing a V1 LLM engine") == ("vllm" in words and len(words) == 2)
    return store / base_id(str(model), None) / "eval"


def compare(one: Path, other: Path, benchmark: str = "greedy") -> None:
    """The same responses and scores; log-probs as near as two kernels are."""
    one, other = one / benchmark, other / benchmark
    mine, theirs = (pq.read_table(folder / "samples.parquet").to_pylist() for folder in (one, other))
    assert len(mine) == 24
    for left, right in zip(mine, theirs, strict=True):
        assert left.pop("logprob") == pytest.approx(right.pop("logprob"), abs=1e-3)
        assert left == right
    scores = [json.loads((folder / "result.json").read_text())["scores"] for folder in (one, other)]
    assert scores[0] == scores[1]
    assert 0 < next(iter(scores[0].values())) < 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("greedy")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    """A checkpoint of ours, whose tied weights vLLM must find under the name that it reads."""
    return final_model(train(Run(small(folder / "trained", "train.steps=1"))))


@pytest.fixture(scope="module")
def inside(folder: Path, model: Path) -> Path:
    """What an engine of the command's own process measured after another model."""
    return evaluated(folder, model, "--backend", "vllm", before="package:laptop")


def test_greedy_scores_are_the_torch_backends(folder: Path, model: Path, inside: Path) -> None:
    compare(evaluated(folder, model, "--backend", "torch"), inside)


def test_two_servers_give_the_same(folder: Path, model: Path, inside: Path) -> None:
    lay(folder, folder / "mark")  # modules in the current folder, which no server imports
    copies = evaluated(folder, model, "--backend", "vllm", "--data-parallel", "2")
    assert executed(folder / "mark") == []
    compare(inside, copies)
    compare(inside, copies, "drawn")
    assert len(list((copies / ".servers").glob("server_*.log"))) == 2


def test_servers_end_when_the_command_is_killed(tmp_path: Path) -> None:
    words = ("eval", "add3", "--model", "package:laptop", "--store", tmp_path / "runs", "--quiet")
    command = started(*words, "--backend", "vllm", "--data-parallel", "2")
    until(lambda: len(servers(command.pid)) == 2, command)
    begun = servers(command.pid)
    folders = [Path(words_of(server)[words_of(server).index("--uds") + 1]).parent for server in begun]
    assert all([*map(runs, begun), *map(Path.is_dir, folders)])
    command.kill()
    end = time.monotonic() + 300
    while any([*map(runs, begun), *map(Path.exists, folders)]):
        assert time.monotonic() < end
        time.sleep(0.05)


def servers(pid: int) -> list[int]:
    return [child for child in children(pid) if any("api_server" in word for word in words_of(child))]
