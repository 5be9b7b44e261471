"""docs/own-method.md, followed: the files of each example in an empty folder, and the commands that the page gives."""

from pathlib import Path

import pytest

from tests.support.commands import tepo
from tests.unit.objectives.own_examples import COMMANDS, examples, follow

pytestmark = pytest.mark.disaster
SMALL = ("train.prompts_per_step=8", "train.samples_per_prompt=4", "train.mini_batch_prompts=4", "train.epochs=1")


def test_the_page_gives_the_commands() -> None:
    assert [command.split()[1:4:2] for command in COMMANDS] == [
        ["explain", "--check"],
        ["explain"],
        ["train", "train.steps=2"],
    ]


@pytest.mark.parametrize("name", examples())
def test_the_commands_of_the_page_on_each_example(name: str, tmp_path: Path) -> None:
    follow(name, tmp_path)
    printed = {}
    for command in COMMANDS:
        words = command.replace("NAME", name).split()[1:]
        small = SMALL if words[0] == "train" else ()
        printed[words[0]] = tepo(*words, *small, cwd=tmp_path, TEPO_PATH=".").stdout
    about = (tmp_path / "objective" / f"{name}.yaml").read_text().splitlines()[0].removeprefix("about: ").strip('"')
    assert about in " ".join(printed["explain"].split())
    (metrics,) = tmp_path.glob("runs/*/metrics.jsonl")
    assert len(metrics.read_text().splitlines()) == 2
