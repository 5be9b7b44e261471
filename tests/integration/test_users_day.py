"""A new user's day: from an installed wheel, outside of the checkout, by commands and documents alone, on data that no
test holds.

`python -m tests.integration.test_users_day [SEED]` prints each command with what its user looks for in what it says,
and ends with exit code 1 where that is not there. The seed makes the words, numbers and names of the problems; by
default it is the date.
"""

import argparse
import datetime
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tepo.objectives.check import CHECKS
from tests.integration.own_model import make_tokenizer, save_taught
from tests.support.runs import write

ROOT = Path(__file__).parents[2]
SMALL = "train.steps=2 train.prompts_per_step=8 train.samples_per_prompt=8 train.mini_batch_prompts=4"
SHORT = "train.max_new_tokens=12"
# TRL's signature; half a point for a response that is short enough for the row
REWARD = """
def reward(completions, Ergebnis, room, **kwargs):
    return [
        {"reward": 0.5 * (gold in text) + 0.5 * (len(text) <= int(most)), "room": int(most)}
        for text, gold, most in zip(completions, Ergebnis, room)
    ]
"""
BEST = '''
import torch
from tepo.objectives import function


@function(takes="response", gives="response")
def best_g(layout, x):
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
    "title": "Left over",
    "dataset": {"path": "left.jsonl"},
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
        "laptop": {"models": ["./tiny"], "seeds": [0, 1], "overrides": [*SMALL.split(), "data.benchmarks=[left]"]}
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


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class NotSeen(Exception):
    """What a user looks for is not there."""


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
        others = {key: value for key, value in os.environ.items() if not key.startswith("TEPO_")}
        user = {"PYTHONPATH": str(site), "TEPO_PATH": ".", "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}
        self.where: Any = {"cwd": self.folder, "env": others | user, "text": True}
        where = [sys.executable, "-c", "import tepo, tepo_cli; print(tepo.__file__, tepo_cli.__file__)"]
        files = subprocess.run(where, **self.where, capture_output=True, check=True).stdout
        if files.count(str(site)) != 2:
            raise NotSeen(f"not the wheel's: {files}")
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.shell: Any = subprocess.Popen([sys.executable, "-c", SHELL], **self.where, **streams)

    def sees(self, command: str, *patterns: str, code: int = 0) -> str:
        """What a command prints, both streams, when it ends as it should and shows all that is looked for."""
        say(f"$ tepo {command}")
        self.shell.stdin.write(json.dumps([self.tepo, *shlex.split(command)]) + "\n")
        self.shell.stdin.flush()
        returned, printed = json.loads(self.shell.stdout.readline())
        if returned != code or "Traceback" in printed:
            raise NotSeen(f"exit code {returned}\n{printed}")
        self.shows(printed, *patterns)
        return str(printed)

    def shows(self, text: str, *patterns: str) -> None:
        """Print the line of each pattern, which must be there."""
        for pattern in patterns:
            match = re.search(pattern, text, re.MULTILINE)
            if match is None:
                raise NotSeen(f"no {pattern!r} in\n{text}")
            start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
            say(f"    {text[start : end if end >= 0 else None].strip()}")

    def declares(self, name: str, content: dict) -> None:
        write(self.folder / name, yaml.safe_dump(content, allow_unicode=True))


def problems(count: int, seed: int) -> list[dict[str, Any]]:
    """Problems with made-up words: statement, one of four answers, so that a guess is right now and then, and how many
    characters a response may have."""
    draw = random.Random(seed)
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    people = ["".join(draw.sample(syllables, 2)).title() for _ in range(6)]
    things = ["".join(draw.sample(syllables, 3)) + "s" for _ in range(5)]
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        answer, start, lost = draw.randint(3, 6), draw.randint(8, 40), draw.randint(2, 7)
        who, what, change = draw.choice(people), draw.choice(things), answer - start + lost
        more = f"buys {change}" if change > 0 else f"sells {-change}"
        text = f"{who} had {start} {what}, lost {lost} and {more}. How many {what} are left?"
        rows[text] = {"Aufgabe": text, "Ergebnis": str(answer), "room": draw.randint(8, 12)}
    return list(rows.values())


def a_day(user: User, seed: int) -> None:
    """Raises NotSeen, with the command and all that it printed, for the first thing that is not as it should be."""
    folder, rows = user.folder, problems(60, seed)
    rows, others = rows[:40], rows[40:]

    # a model with a vocabulary of its own, which knows the words and boxes one of the four answers
    texts, boxed = [row["Aufgabe"] for row in [*rows, *others]], [f"\\boxed{{{answer}}}" for answer in range(3, 7)]
    tokenizer = make_tokenizer([*texts, *boxed], chat=True)
    save_taught(folder / "tiny", tokenizer, "qwen2", texts, boxed, 60, max_position_embeddings=256)

    # problems with columns of other names, as a spreadsheet of Windows saves them: a BOM, semicolons, a blank line
    table = "Aufgabe;Ergebnis;room\r\n\r\n" + "".join('"{Aufgabe}";{Ergebnis};{room}\r\n'.format(**row) for row in rows)
    (folder / "left.csv").write_bytes(("\ufeff" + table).encode())
    named = "data.fields.problem=Aufgabe data.fields.answer=Ergebnis"
    user.sees(f"data verify left.csv {named}", "40 problems", r"Aufgabe\W+problem", r"Ergebnis\W+answer")

    # what it will do, then a run with a reward that takes a column of the data; its card repeats it
    own = [{"id": f"left-{n}", "problem": row["Aufgabe"], "answer": row["Ergebnis"]} for n, row in enumerate(others)]
    write(folder / "evals/left.jsonl", "".join(json.dumps(row) + "\n" for row in own))
    user.declares("evals/left.yaml", BENCHMARK)
    write(folder / "rewards/short.py", REWARD)
    train = f"train model=./tiny data=left.csv {named} {SMALL} {SHORT} 'data.benchmarks=[left]'"
    rewarded = f"{train} objective=grpo_dapo data.columns=[Ergebnis,room] data.reward=rewards/short.py --evaluate"
    facts = ("trains", "steps", "time", "memory", "run")
    user.sees(f"{rewarded} --dry-run", *(f"^{fact} " for fact in facts), f"^\\| .*({'|'.join(map(re.escape, texts))})")
    run = re.search(r"run ([0-9a-f]{12}): 2 steps", user.sees(f"{rewarded} --quiet", "run [0-9a-f]{12}: 2 steps"))
    assert run
    metrics = (folder / "runs" / run[1] / "metrics.jsonl").read_text().splitlines()
    if not 0 < json.loads(metrics[0])["critic/score/mean"] < 1:
        raise NotSeen(f"no mean reward between 0 and 1 in {metrics[0]}")
    card = next((folder / "runs" / run[1]).glob("checkpoints/*/README.md")).read_text()
    user.shows(card, "Rewarded: reward of short.py", r"^\| left \| 20 \|", "^tepo train .*data.reward=")
    again = next(line for line in card.splitlines() if line.startswith("tepo train "))
    user.sees(f"{again.removeprefix('tepo ')} --dry-run", rf"^run +runs/{run[1]}: finished")
    protocol = "left:deepseek_r1:samples2:tokens12"
    drawn = "2 samples a problem, temperature 0.6, top_p 0.95, at most 12 tokens"
    user.sees(f"eval {protocol} --model {run[1]}", rf"{protocol} +[│|] +20", drawn)

    # a method; a study with the untrained model and two seeds: table, page, records
    write(folder / "functions/below_best.py", BEST)
    user.declares("objective/below_best.yaml", OBJECTIVE)
    checked = user.sees("explain below_best --check", "gradient .* pass ")
    if checked.count("pass") != len(CHECKS):
        raise NotSeen(checked)
    user.declares("experiments/best.yaml", STUDY)
    words = f"--data left.csv --set {' --set '.join(named.split())} --set {SHORT}"
    user.sees(f"ablate best {words} --jobs 2", "Below the best", r"^Ours +\d+\.\d .*2 seeds: no verdict")
    table = user.sees(f"table best {words} --format csv", *(f"{row}.*left," for row in ("untrained", "GRPO", "Ours")))
    user.sees(f"report best {words} --out page.html", "page.html")
    page = (folder / "page.html").read_text()
    user.shows(re.sub(r"<[^>]+>", " ", page), "Ours lies .* points from GRPO: Below the best")
    user.sees(f"records write best {words.replace('--data ', '--set data=')}", "best: 5 runs from the store")
    (folder / "runs").rename(folder / "elsewhere")
    shown = user.sees(f"table best {words} --records --store nothing --format csv", "^Measured,")
    if scores(shown) != scores(table):
        raise NotSeen(f"the records give another table:\n{shown}\n{table}")


def scores(table: str) -> list[str]:
    return [line for line in table.splitlines() if line.startswith("Measured,")]


def day_in(place: Path, seed: int) -> None:
    user = User(place)
    try:
        a_day(user, seed)
    finally:
        user.shell.communicate()  # the end of its input ends it


@pytest.mark.disaster
def test_a_day(tmp_path: Path) -> None:
    day_in(tmp_path, seed=0)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.integration.test_users_day", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, default=int(f"{datetime.date.today():%Y%m%d}"))
    seed = parser.parse_args().seed
    say(f"seed {seed}")
    with tempfile.TemporaryDirectory() as place:
        try:
            day_in(Path(place), seed)
        except NotSeen as error:
            sys.exit(f"NOT AS IT SHOULD BE: {error}")
    say("all as it should be")


if __name__ == "__main__":
    main()
