"""Commands given in a folder where files lie with the names of modules, as beside downloaded studies and problems: none
of them is executed, whichever process of a command imports."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tepo.policy.kernel_check import CHECKS
from tests.decoys import executed, lay
from tests.integration.slurm_cluster import cluster
from tests.unit.training.small import SMALL, few_problems, write

FEW = [*SMALL, "train.steps=1", "data.benchmarks=[add3]"]
ROWS = r"[{label: 'A $\frac{$', objective: grpo_dapo}, {label: B, objective: gspo}]"
STUDY = (
    f"title: decoyed\nrows: {ROWS}\nscales: {{laptop: {{models: [laptop], seeds: [0], overrides: {json.dumps(FEW)}}}}}"
)
TUNED = STUDY + "\ntune: {draws: 2, seeds: [50], space: {train.learning_rate: {log: [1e-5, 1e-3]}}}\n"
REWARD = "import html, random\ndef reward(problem, response):\n    return 1 - len(response) / 100\n"
PROBLEMS = "".join(json.dumps({"id": n, "problem": f"{n}+{n}=", "answer": str(2 * n)}) + "\n" for n in range(99))
RANKS = [*FEW, "engine=deepspeed", "train.steps=2", "train.max_rounds=4"]
VLLM = [*FEW, "sampler=vllm", "sampler.memory_fraction=0.06"]
COMMANDS = {
    "local": [
        "doctor --no-selftest",
        "train data=study/problems.jsonl data.reward=study/reward.py FEW",
        "train FEW --evaluate",
        "eval add3 --model package:laptop --limit 2",
        "data grade study/answers.jsonl",
        "ablate decoyed --jobs 2",
        "plan tuned",
        "report decoyed",
    ],
    "more": [
        "ablate tuned --jobs 2",
        "reproduce decoyed",
        "records write decoyed --out written",
        "records check decoyed --records written",
        "plan decoyed --difference 2",
        "table decoyed",
        "figure tuned --out figures",
        "table claims",
        "list",
        "list --watch",
        "responses add3",
        "explain tepo --check",
        "data verify study/problems.jsonl",
        "model warmstart --steps 2 --out base",
        "doctor --store runs --no-selftest",
    ],
}


class User:
    """A person in a folder with decoys, who types commands: a script that lies elsewhere, as `pip` makes it."""

    def __init__(self, folder: Path):
        self.mark, self.work, self.script = folder / "mark", folder / "work", folder / "bin" / "tepo"
        write(self.script, "from tepo_cli.main import main\nif __name__ == '__main__':\n    main()\n")
        mine = few_problems(self.work / "mine")
        for name, text in (("decoyed", STUDY), ("tuned", TUNED)):
            write(self.work / f"mine/experiments/{name}.yaml", text)
        write(self.work / "study/problems.jsonl", PROBLEMS)
        write(self.work / "study/reward.py", REWARD)
        write(
            self.work / "study/answers.jsonl", '{"gold": "\\\\sqrt{2}/2", "prediction": "\\\\boxed{1/\\\\sqrt{2}}"}\n'
        )
        for place in ("", "study", "mine", "mine/experiments"):
            lay(self.work / place, self.mark)
        ours = ("PYTHONSAFEPATH", "PYTHONPATH", "TEPO_PATH")
        self.environment = {name: value for name, value in os.environ.items() if name not in ours} | mine

    def types(self, line: str, *words: str, code: int | None = 0, before: tuple[str, ...] = ()) -> str:
        """What a command prints on its way to this exit code; FEW stands for the words of a small run."""
        given = [part for word in line.split() for part in (FEW if word == "FEW" else [word])]
        return self.runs(*before, str(self.script), *given, *words, code=code)

    def runs(self, *words: str, code: int | None = 0) -> str:
        where: Any = {"cwd": self.work, "env": self.environment, "text": True, "timeout": 500}
        done = subprocess.run([sys.executable, *words], capture_output=True, check=False, **where)
        said = f"{done.stdout}\n{done.stderr}"
        assert executed(self.mark) == [], said[-2000:]
        assert code in (None, done.returncode), said[-3000:]
        return said


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


@pytest.mark.slow
@pytest.mark.disaster
@pytest.mark.parametrize("lines", COMMANDS.values(), ids=COMMANDS)
def test_no_command_executes_a_decoy(user: User, lines: list[str]) -> None:
    for line in lines:
        user.types(
            line, code=None if line.startswith(("records check", "responses", "plan decoyed --difference")) else 0
        )


NOTEBOOK = """
import os, sys
import tepo.api, tepo.jobs.job, tepo.training.setup, tepo.launch.forkserver  # what a cell has imported, it has
before = list(sys.path)
assert sys.path[0] == ""
os.chdir(sys.argv[1])
result = tepo.api.train([*sys.argv[2:], "data.reward=study/reward.py"], store="runs", progress=False)
assert len(result.metrics()) == 1
shown = tepo.api.run("decoyed", store="runs", jobs=2, progress=False)
assert tepo.api.grade([{"gold": "sqrt(2)/2", "prediction": "\\\\boxed{1/sqrt(2)}"}])
assert before == sys.path and "PYTHONSAFEPATH" not in os.environ
"""


@pytest.mark.slow
@pytest.mark.disaster
def test_neither_do_calls_from_a_notebook_which_gets_its_path_and_variables_back(user: User, tmp_path: Path) -> None:
    """Its own process has the current folder first, so the decoys come when it has begun."""
    folder = user.work
    user.work = tmp_path
    user.runs("-c", NOTEBOOK, str(folder), *FEW)


@pytest.mark.disaster
@pytest.mark.deepspeed
def test_neither_do_ranks_nor_the_process_that_measures(user: User) -> None:
    """Started by torchrun, as a person types it and as a study does on several GPUs."""
    torchrun = "-m torch.distributed.run --nproc-per-node 2 --standalone --no-python"
    user.runs("-P", *torchrun.split(), sys.executable, str(user.script), "train", *RANKS, "--evaluate")
    assert list(user.work.glob("runs/*/eval/add3/result.json"))


@pytest.mark.disaster
@pytest.mark.vllm
def test_neither_do_engines_and_servers_of_vllm(user: User) -> None:
    user.types("train FEW --evaluate", *VLLM[len(FEW) :])  # which hands over
    user.types("eval add3 --model package:laptop --backend vllm --limit 2")
    user.environment |= {"LOCAL_WORLD_SIZE": "2"}  # a server for each
    user.types("eval add3 --model package:laptop --backend vllm --limit 4 --store other")


@pytest.mark.disaster
@pytest.mark.vllm
@pytest.mark.deepspeed
def test_neither_do_the_engines_of_doctor(user: User) -> None:
    """And all of them work."""
    lines = user.types("doctor").splitlines()
    outcomes = [line for line in lines if line.startswith("sampler=")]
    assert len(outcomes) == 3
    assert all("works: sampled, updated, synced, saved and resumed" in line for line in outcomes), outcomes
    (own,) = (line for line in outcomes if line.startswith("sampler=vllm "))
    assert "and measured, in bfloat16, in" in own
    kernels = [line for line in lines if line.startswith("GPU, ")]
    if torch.cuda.is_available():
        assert [line.endswith(": works") for line in kernels] == [True] * len(CHECKS), kernels
    else:
        assert "it never slept, which takes a GPU" in own
        assert any("GPU part: not run, there is no GPU here" in line for line in lines)


@pytest.mark.disaster
@pytest.mark.slurm
def test_neither_do_the_jobs_of_slurm(user: User) -> None:
    with cluster():
        user.environment |= {"SLURM_CONF": os.environ["SLURM_CONF"]}
        user.types("ablate decoyed --launcher slurm")
