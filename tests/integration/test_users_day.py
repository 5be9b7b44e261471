"""A new user's day: from an installed wheel, outside of the checkout, by commands and documents alone."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from tepo.objectives.check import CHECKS
from tests.integration.commands import TIME_LIMIT
from tests.integration.own_model import save_family, word_problems
from tests.unit.training.small import write

pytestmark = pytest.mark.disaster

ROOT = Path(__file__).parents[2]
SMALL = "train.steps=2 train.prompts_per_step=8 train.samples_per_prompt=8 train.mini_batch_prompts=4"
SHORT = "train.max_new_tokens=12"
REWARD = """
def reward(problem, response):
    return 1.0 if problem.answer in response else 0.0
"""
BEST = '''
import torch
from torch import Tensor

from tepo.objectives import Layout, function


@function(takes="response", gives="response")
def best_g(layout: Layout, x: Tensor) -> Tensor:
    """Largest of the group."""
    same = layout.groups[:, None] == layout.groups[None]
    return torch.where(same, x[None], -torch.inf).amax(1) if len(x) else x
'''
OBJECTIVE = {
    "about": "A response's reward less the best of its group: the best is not pushed, the others are pushed down.",
    "like": "grpo_dapo",
    "functions": "below_best",
    "formula": {"A": "scale*(R - best_g(R))"},
    "constants": {"scale": {"value": 2.0, "source": "ours"}},
}
BENCHMARK = {
    "title": "Word problems",
    "dataset": {"path": "bags.jsonl"},
    "count": 20,
    "prompt": "boxed",
    "samples": 2,
    "temperature": 1.0,
    "max_new_tokens": 12,
}
STUDY = {
    "title": "Below the best",
    "baseline": "GRPO",
    "rows": [
        {"label": "untrained", "base": True},
        {"label": "GRPO", "objective": "grpo_dapo"},
        {"label": "Ours", "objective": "below_best"},
    ],
    "scales": {
        "laptop": {"models": ["./tiny"], "seeds": [0, 1], "overrides": [*SMALL.split(), "data.benchmarks=[bags]"]}
    },
}
# Forks the commands that it reads, with the imports done.
SHELL = """
import importlib, json, os, runpy, sys, tempfile
from tepo.launch.forkserver import _WARM
for name in _WARM:
    importlib.import_module(name)
for line in sys.stdin:
    with tempfile.TemporaryFile("w+") as printed:
        child = os.fork()
        if not child:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            sys.argv = json.loads(line)
            runpy.run_path(sys.argv[0], run_name="__main__")
            sys.exit()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        printed.seek(0)
        print(json.dumps([code, printed.read()]), flush=True)
"""


class User:
    """A person in an empty folder, with the wheel installed below another and nothing else of ours in reach."""

    def __init__(self, place: Path):
        self.folder, site = place / "work", place / "site"
        self.folder.mkdir()
        pip: list[Any] = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", place / "dist", ROOT], check=True)
        (wheel,) = (place / "dist").glob("*.whl")
        subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
        self.tepo = str(site / "bin" / "tepo")
        kept = {key: value for key, value in os.environ.items() if not key.startswith("TEPO_")}
        own = {"PYTHONPATH": str(site), "TEPO_PATH": ".", "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}
        self.where: Any = {"cwd": self.folder, "env": kept | own, "text": True}
        found = self.python("-c", "import tepo, tepo_cli; print(tepo.__file__, tepo_cli.__file__)")
        assert found.count(str(site)) == 2, found
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.shell = subprocess.Popen([sys.executable, "-c", SHELL], **self.where, **streams)

    def python(self, *words: str) -> str:
        """What an interpreter of its own prints."""
        done = subprocess.run(
            [sys.executable, *words], **self.where, capture_output=True, timeout=TIME_LIMIT, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def types(self, command: str, *, code: int = 0) -> str:
        """What a command prints, both streams, when it ends as it should."""
        self.shell.stdin.write(json.dumps([self.tepo, *command.split()]) + "\n")
        self.shell.stdin.flush()
        returned, printed = json.loads(self.shell.stdout.readline())
        assert returned == code, f"{command}\n{printed}"
        assert "Traceback" not in printed
        return printed

    def declares(self, name: str, content: dict) -> None:
        write(self.folder / name, yaml.safe_dump(content, allow_unicode=True))


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    user = User(tmp_path)
    yield user
    user.shell.communicate()  # the end of its input ends it


def test_a_day(user: User) -> None:
    assert user.python(user.tepo, "--version").startswith("tepo ")

    # problems of one's own; a BOM, blank lines and Windows' ends of lines are no mistakes
    good = [json.dumps(row).encode() for row in word_problems(40)]
    lines = [b"\xef\xbb\xbf" + good[0], b"", *good[1:], b'{"id": "a", "answer": "1"}']
    (user.folder / "words.jsonl").write_bytes(b"\r\n".join(lines))
    assert "line 42: no problem" in user.types("data verify words.jsonl", code=2)
    (user.folder / "words.jsonl").write_bytes(b"\r\n".join(lines[:-1]))
    assert "40 problems" in user.types("data verify words.jsonl")

    # a model with a vocabulary of its own
    save_family(user.folder / "tiny", "qwen2")
    train = f"train model=./tiny data=words.jsonl objective=grpo_dapo {SMALL} {SHORT} --quiet"
    run = re.search(r"run ([0-9a-f]{12}): 2 steps", user.types(train))
    assert run
    metrics = (user.folder / "runs" / run[1] / "metrics.jsonl").read_text().splitlines()
    assert 0 < json.loads(metrics[0])["critic/score/mean"] < 1

    # the same problems as messages and as GSM8K's rows; a sweep; what a push would send
    chats = [
        {"messages": [{"role": "user", "content": row["problem"]}, {"role": "assistant", "content": row["answer"]}]}
        for row in word_problems(40)
    ]
    pd.DataFrame(chats).to_parquet(user.folder / "chats.parquet")
    assert re.search(r"messages\W+problem and answer", user.types("data verify chats.parquet"))
    solved = [{"question": row["problem"], "answer": f"So it is.\n#### {row['answer']}"} for row in word_problems(40)]
    (user.folder / "gsm.jsonl").write_text("".join(json.dumps(row) + "\n" for row in solved))
    assert "40 problems" in user.types("data verify gsm.jsonl")
    dry = user.types(f"train model=./tiny data=chats.parquet {SMALL} {SHORT} --dry-run")
    assert all(re.search(rf"^{name} ", dry, re.MULTILINE) for name in ("trains", "steps", "time", "memory", "run")), dry
    few = f"{SMALL} {SHORT} data.benchmarks=[mul3]"
    swept = user.types(f"train model=./tiny data=gsm.jsonl objective=gspo,cispo seed=range(2) {few} --dry-run")
    assert "4 runs, 4 to do" in swept
    sent = user.types(f"push runs/{run[1]} somebody/tiny --dry-run")
    assert all(name in sent for name in ("README.md", "model.safetensors", "objective.yaml"))

    # a benchmark, some of whose problems are in the training set
    own = [{**row, "id": f"bag-{number}"} for number, row in enumerate(word_problems(20, seed=1))]
    own[0] = {**own[0], **{key: word_problems(1)[0][key] for key in ("problem", "answer")}}
    write(user.folder / "evals/bags.jsonl", "".join(json.dumps(row) + "\n" for row in own))
    user.declares("evals/bags.yaml", BENCHMARK)
    assert re.search(r"bags +[│|] +20 +[│|] +\d+\.\d\d", user.types(f"eval bags --model runs/{run[1]}"))

    # a reward, and an advantage
    write(user.folder / "rewards/named.py", REWARD)
    other = re.search(r"run ([0-9a-f]{12}): 2 steps", user.types(f"{train} data.reward=rewards/named.py"))
    assert other
    assert other[1] != run[1]
    assert "named" in user.types(f"explain {other[1]}")
    write(user.folder / "functions/below_best.py", BEST)
    user.declares("objective/below_best.yaml", OBJECTIVE)
    checked = user.types("explain below_best --check")
    assert checked.count("pass") == len(CHECKS), checked

    # a study with the untrained model and two seeds, and its records
    user.declares("experiments/bags.yaml", STUDY)
    words = f"--data words.jsonl --set {SHORT}"
    assert "5 runs" in user.types(f"plan bags {words}")
    user.types(f"ablate bags {words} --jobs 2")
    table = user.types(f"table bags {words} --format csv")
    assert all(re.search(rf"{label}\b.*\bbags,", table) for label in ("untrained", "GRPO", "Ours")), table
    recorded = f"records write bags --set data=words.jsonl --set {SHORT}"
    assert "bags: 5 runs from the store" in user.types(recorded)
    (user.folder / "runs").rename(user.folder / "elsewhere")
    shown = user.types(f"table bags {words} --records --store nothing --format csv")
    assert scores(shown) == scores(table) != []

    # TEPO in somebody else's trainer
    assert user.python("-c", "from tepo.integrations.trl import ObjectiveTrainer as one; print(one)")


def scores(table: str) -> list[str]:
    return [line for line in table.splitlines() if line.startswith("Measured,")]
