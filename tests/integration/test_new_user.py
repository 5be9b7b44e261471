"""What somebody with problems, a model, a benchmark and a table of their own does,
from an installed wheel, outside the checkout."""

import json
import re
from collections.abc import Iterator

import pytest

from tepo.objectives.check import CHECKS
from tests.integration.installed import User
from tests.integration.own_model import save_tiny
from tests.unit.objectives.own_examples import examples
from tests.unit.training.small import write

SMALL = ["train.steps=2", "train.prompts_per_step=8", "train.samples_per_prompt=8", "train.mini_batch_prompts=4"]
WORDS = ["zero", "one", "two", "three"]
BENCHMARK = {
    "title": "Digits",
    "dataset": {"path": "digits.jsonl"},
    "count": 12,
    "prompt": "boxed",
    "samples": 2,
    "temperature": 1.0,
    "max_new_tokens": 12,
}
STUDY = {
    "title": "Ours",
    "baseline": "GRPO",
    "rows": [{"label": "GRPO", "objective": "grpo_dapo"}, {"label": "TEPO", "objective": "tepo"}],
    "scales": {"laptop": {"models": ["./tiny"], "seeds": [0], "overrides": [*SMALL, "data.benchmarks=[digits]"]}},
}


def problems(noun: str, count: int = 12) -> list[tuple[str, str]]:
    return [(f"Which {noun} is {WORDS[number % 4]}?", str(number % 4)) for number in range(count)]


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    user = User.of_wheel(tmp_path_factory.mktemp("new user"))  # a folder with a space
    user.writes("words.jsonl", problems("digit"))
    user.writes("evals/digits.jsonl", problems("number"))
    user.declares("evals/digits.yaml", BENCHMARK)
    user.declares("experiments/ours.yaml", STUDY)
    save_tiny(user.folder / "tiny", *zip(*problems("digit"), strict=True))
    yield user
    user.leaves()


def trained(said: str) -> str:
    found = re.search(r"^run ([0-9a-f]{12}): 2 steps", said, re.MULTILINE)
    assert found, said
    return found.group(1)


@pytest.mark.disaster
def test_own_problems_and_model_from_training_to_a_table(user: User) -> None:
    words = " ".join(SMALL)
    train = f"train model=./tiny data=words.jsonl objective=grpo_dapo {words} --quiet"
    first = trained(user.types(train))
    steps = [json.loads(line) for line in (user.folder / f"runs/{first}/metrics.jsonl").read_text().splitlines()]
    assert [row["training/global_step"] for row in steps] == [1, 2]
    assert 0 < steps[0]["critic/score/mean"] < 1  # some answers are right, so there is something to learn

    stamp = (user.folder / f"runs/{first}/metrics.jsonl").stat().st_mtime_ns
    (user.folder / "words.jsonl").rename(user.folder / "renamed.jsonl")
    assert (
        trained(user.types(train.replace("words", "renamed"))) == first
    )  # finished: the same problems under another name
    assert (user.folder / f"runs/{first}/metrics.jsonl").stat().st_mtime_ns == stamp

    user.writes("words.jsonl", problems("numeral"))
    second = trained(user.types(train))
    assert second != first
    assert user.runs() == {first, second}
    listed = user.types("list")
    assert re.search(rf"{second} +[│|] +grpo_dapo +[│|] +tiny +[│|] +words +[│|] +0 +[│|] +finished", listed), listed

    verified = user.types("data verify digits")
    assert re.search(r"digits: 12 problems, content [0-9a-f]{64}; not pinned", verified)
    scored = user.types(f"eval digits --model runs/{second}")
    assert re.search(r"digits +[│|] +12 +[│|] +\d+\.\d\d ± \d+\.\d\d", scored), scored

    made = user.types("ablate ours --data words.jsonl --jobs 2 --format csv")
    assert len(user.runs()) == 3  # the row GRPO is the run that was there
    table = user.types("table ours --data words.jsonl --format csv")
    assert {line for line in table.splitlines() if line.startswith("ours,")} == {
        line for line in made.splitlines() if line.startswith("ours,")
    }
    assert all(re.search(rf"{label}\b.*\bdigits,", table) for label in ("GRPO", "TEPO")), table

    user.writes("evals/digits.jsonl", problems("cipher"))
    refused = user.types("table ours --data words.jsonl", code=2)
    assert "digits was measured under another definition of the benchmark" in refused


@pytest.mark.disaster
def test_the_shipped_model_on_own_problems_and_words_that_cannot_be_meant(user: User) -> None:
    user.writes("sums.jsonl", [(f"{number}+{number + 7}=", str(2 * number + 7)) for number in range(111, 143)])
    run = trained(user.types(f"train data=sums.jsonl {' '.join(SMALL)} --quiet"))
    config = json.loads((user.folder / f"runs/{run}/config.json").read_text())["full"]
    assert (config["data"]["kind"], config["data"]["name"], config["model"]["name"]) == ("problems", "sums", "laptop")
    assert "no such file" in user.types("train data=smus.jsonl", code=2)
    assert "generates them" in user.types("train data.kind=procedural data.problems=sums.jsonl", code=2)


ERF = examples()["erf"]["functions/erf.py"]
NARROW = {"like": "grpo_dapo", "constants": {"low": {"value": 0.1, "source": "ours"}, "high": 0.1}}
LEVEL = {
    "like": "grpo_dapo",
    "functions": "level",
    "formula": {"J": "A*erf((w - 1)/width)"},
    "constants": {"width": 0.2},
}
OWN_STUDY = {
    "title": "Own methods",
    "baseline": "GRPO",
    "rows": [
        {"label": "GRPO", "objective": "grpo_dapo"},
        {"label": "Narrow", "objective": "narrow"},
        {"label": "Level", "objective": "level"},
        {"label": "Wide level", "objective": "level", "overrides": ["objective.width=0.4"]},
    ],
    "scales": {"laptop": {"models": ["mine"], "seeds": [0], "overrides": [*SMALL, "data.benchmarks=[digits]"]}},
}


@pytest.mark.disaster
def test_own_objectives_in_yaml_and_in_python_with_own_data_and_model_get_their_rows(user: User) -> None:
    write(user.folder / "functions/level.py", ERF)
    user.declares("objective/narrow.yaml", NARROW)
    user.declares("objective/level.yaml", LEVEL)
    user.declares("model/mine.yaml", {"name": "mine", "path": "./tiny"})
    user.writes("own_words.jsonl", problems("digit"))
    own = {"name": "own", "base": "package:laptop", "kind": "problems", "prompt": "boxed", "benchmarks": []}
    user.declares("data/own.yaml", {**own, "problems": "own_words.jsonl"})
    user.declares("experiments/own_methods.yaml", OWN_STUDY)
    user.writes("evals/digits.jsonl", problems("number"))

    listed = " ".join(user.types("list").split())
    assert all(f"{name} ({folder})" in listed for name, folder in (("narrow", "objective"), ("mine", "model")))
    assert user.types("explain level --check").count("pass") == len(CHECKS)
    user.types("ablate own_methods --data own --jobs 2 --store own_runs")  # forked workers load the file too
    table = user.types("table own_methods --data own --store own_runs --format csv")
    assert all(re.search(rf"{label}\b.*\bdigits,", table) for label in ("GRPO", "Narrow", "Level", "Wide level"))
    assert re.search(r"objective\.width=0\.[24]", user.types("list --store own_runs --all"))  # one apart from the other

    words = " ".join(SMALL)
    train = f"train model=mine data=own objective=level data.benchmarks=[digits] {words} --store own_runs --quiet"
    run = trained(user.types(train))  # that of the study
    (user.folder / "functions/level.py").rename(user.folder / "level.py")
    assert "the run keeps Python that is not in functions/" in user.types(f"explain {run} --store own_runs", code=2)
    assert "erf(" in user.types(f"explain {run} --store own_runs --trust")
    assert "did you mean" in user.types("train objective=levle", code=2)
    (user.folder / "functions/level.py").write_text(ERF.replace("x.erf()", "x.tanh()"))
    assert trained(user.types(train)) != run
    (user.folder / "functions/level.py").write_text(ERF.replace("x.erf()", "x.erf("))
    assert "functions/level.py:9" in user.types(train, code=2)
