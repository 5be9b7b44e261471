"""Beside these: servers in test_eval_vllm.py."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import TIME_LIMIT
from tests.support.decoys import executed, lay
from tests.support.runs import SMALL, few_problems, write, write_study

FEW = [*SMALL, "train.steps=1", "data.benchmarks=[add3]"]
ROWS = {r"A $\frac{$": "grpo_dapo", "B": "gspo"}
REWARD = "import html, random\ndef reward(problem, response):\n    return 1 - len(response) / 100\n"
PROBLEMS = "".join(json.dumps({"id": n, "problem": f"{n}+{n}=", "answer": str(2 * n)}) + "\n" for n in range(99))
RANKS = [*FEW, "engine=deepspeed", "train.steps=2", "train.max_rounds=4"]
COMMANDS = f"""
doctor --no-selftest
train data=study/problems.jsonl data.reward=study/reward.py {" ".join(FEW)}
eval add3 --model package:laptop --limit 2
data grade study/answers.jsonl
ablate decoyed --jobs 2
plan decoyed
report decoyed
records write decoyed --out written
table decoyed
figure decoyed --out figures
list
explain tepo --check
data verify study/problems.jsonl
model warmstart --steps 2 --out base
records check decoyed --records written
responses add3
"""
ANY_CODE = ("records check", "responses")
# A script that lies elsewhere, as `pip` makes it; commands in turn, of which only the first finds nothing imported.
SCRIPT = """
import sys
from tepo_cli.main import main

if __name__ == "__main__":
    lines = " ".join(sys.argv[1:]).split(" ; ")
    for line in lines:
        sys.argv[1:] = line.split()
        try:
            main()
        except SystemExit as ended:
            if len(lines) == 1:
                raise
            print(f"ended with {ended.code}: {line}", flush=True)
"""


class User:
    """A person in a folder with decoys, who types commands."""

    def __init__(self, folder: Path):
        self.mark, self.work, self.script = folder / "mark", folder / "work", folder / "bin" / "tepo"
        write(self.script, SCRIPT)
        mine = few_problems(self.work / "mine")
        write_study(self.work / "mine", "decoyed", ROWS, *FEW)
        write(self.work / "study/problems.jsonl", PROBLEMS)
        write(self.work / "study/reward.py", REWARD)
        answer = {"gold": "\\sqrt{2}/2", "prediction": "\\boxed{1/\\sqrt{2}}"}
        write(self.work / "study/answers.jsonl", json.dumps(answer) + "\n")
        for place in ("", "study", "mine", "mine/experiments"):
            lay(self.work / place, self.mark)
        ours = ("PYTHONSAFEPATH", "PYTHONPATH", "TEPO_PATH")
        self.environment = {name: value for name, value in os.environ.items() if name not in ours} | mine

    def types(self, line: str) -> str:
        """What commands print, one or several with " ; " between."""
        return self.runs(str(self.script), *line.split())

    def runs(self, *words: str) -> str:
        where: Any = {"cwd": self.work, "env": self.environment, "text": True, "timeout": TIME_LIMIT}
        done = subprocess.run([sys.executable, *words], capture_output=True, check=False, **where)
        said = f"{done.stdout}\n{done.stderr}"
        assert executed(self.mark) == [], said[-2000:]
        assert done.returncode == 0, said[-3000:]
        return said


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


@pytest.mark.slow
@pytest.mark.disaster
def test_no_command_executes_a_decoy(user: User) -> None:
    lines = COMMANDS.strip().splitlines()
    ended = re.findall("^ended with (.*): (.*)$", user.types(" ; ".join(lines)), re.MULTILINE)
    assert [line for _, line in ended] == lines
    assert [one for one in ended if one[0] not in ("0", "None") and not one[1].startswith(ANY_CODE)] == []


@pytest.mark.disaster
@pytest.mark.deepspeed
def test_neither_do_ranks_nor_the_process_that_measures(user: User) -> None:
    """Started by torchrun, as a person types it and as a study does on several GPUs."""
    torchrun = "-m torch.distributed.run --nproc-per-node 2 --standalone --no-python"
    user.runs("-P", *torchrun.split(), sys.executable, str(user.script), "train", *RANKS, "--evaluate")
    assert list(user.work.glob("runs/*/eval/add3/result.json"))


@pytest.mark.disaster
@pytest.mark.vllm
@pytest.mark.deepspeed
def test_neither_do_the_engines_of_doctor(user: User) -> None:
    """And all of them work."""
    outcomes = [line for line in user.types("doctor").splitlines() if line.startswith("sampler=")]
    assert len(outcomes) == 3
    assert all("works: sampled, updated, synced, saved and resumed" in line for line in outcomes), outcomes
