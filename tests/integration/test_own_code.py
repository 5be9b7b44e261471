from pathlib import Path

import pytest

from tepo.common.paths import PACKAGE
from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.commands import tepo
from tests.support.runs import SMALL, assert_same_run, interrupted, lasting, small, weights
from tests.unit.objectives.own_examples import COMMANDS, examples, follow

pytestmark = pytest.mark.disaster
FEW = ("train.prompts_per_step=8", "train.samples_per_prompt=4", "train.mini_batch_prompts=4", "train.epochs=1")
EXAMPLE = PACKAGE.parent / "examples" / "own_reward"
LENGTH = "def reward(problem, response):\n    return max(0.0, 1 - len(response) / 60)\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(LENGTH)
    return path


def test_a_run_learns_what_its_own_reward_asks_for(tmp_path: Path, file: Path) -> None:
    words = (f"data.reward={file}", "train.steps=8", "train.learning_rate=5e-4", "data.benchmarks=[]")
    rows = lasting(train(Run(small(tmp_path, *words))))
    assert all(row["critic/score/mean"] == pytest.approx(row["reward/own/mean"], abs=1e-6) for row in rows)
    assert all(row["reward/failed"] == 0 for row in rows)
    assert rows[-1]["response_length/mean"] < 0.7 * rows[0]["response_length/mean"]
    assert rows[-1]["critic/score/mean"] > rows[0]["critic/score/mean"] + 0.1


def test_a_resumed_run_has_the_same_bits(tmp_path: Path, file: Path) -> None:
    mapping = f"data.reward={{correct: grader, own: {{file: {file}, weight: 0.3}}}}"
    words = (mapping, "objective=gdpo", "data.flip_rewards=0.2", "train.staleness=1", "grader.workers=1")
    whole = train(Run(small(tmp_path / "whole", *words)))
    begun = interrupted(small(tmp_path / "parts", *words), 2)
    again = train(Run(small(tmp_path / "parts", *words, "grader.workers=2")))
    assert again == begun.path
    assert_same_run(whole, again)
    assert all(row["rollout/flipped"] > 0 for row in lasting(whole))


def test_the_example_trains(tmp_path: Path) -> None:
    words = (*SMALL, "data=laptop_short", "objective=gdpo", "train.steps=2", f"store={tmp_path / 'runs'}")
    tepo("train", *words, cwd=tmp_path, TEPO_PATH=str(EXAMPLE))
    (run,) = (path.parent for path in tmp_path.glob("runs/*/config.json"))
    assert {"reward/correct/mean", "reward/short/mean"} <= set(lasting(run)[0])
    assert weights(run)


@pytest.mark.parametrize("name", examples())
def test_the_commands_of_the_page_on_each_example_of_a_method(name: str, tmp_path: Path) -> None:
    """docs/own-method.md, followed: the files of each example in an empty folder, and the commands of the page."""
    assert [command.split()[1:4:2] for command in COMMANDS] == [
        ["explain", "--check"],
        ["explain"],
        ["train", "train.steps=2"],
    ]
    follow(name, tmp_path)
    printed = {}
    for command in COMMANDS:
        words = command.replace("NAME", name).split()[1:]
        small = FEW if words[0] == "train" else ()
        printed[words[0]] = tepo(*words, *small, cwd=tmp_path, TEPO_PATH=".").stdout
    about = (tmp_path / "objective" / f"{name}.yaml").read_text().splitlines()[0].removeprefix("about: ").strip('"')
    assert about in " ".join(printed["explain"].split())
    (metrics,) = tmp_path.glob("runs/*/metrics.jsonl")
    assert len(metrics.read_text().splitlines()) == 2
