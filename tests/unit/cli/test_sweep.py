import re
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.store.run_id import run_id
from tepo.studies.sweep import axes_of, plan_sweep
from tests.support.commands import tepo
from tests.support.runs import SMALL, few_problems


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("seed=range(4,10,2)", ["4", "6", "8"]),
        ("objective=gspo, tepo", ["gspo", "tepo"]),
        ("train.learning_rate=1e-4,4e-4", ["1e-4", "4e-4"]),
        ("data.benchmarks=[add3,max4],[add3]", ["[add3,max4]", "[add3]"]),
    ],
)
def test_several_values_are_an_axis(word: str, values: list[str]) -> None:
    assert axes_of([word]) == {word.partition("=")[0]: values}


@pytest.mark.parametrize(
    "word",
    [
        "data.benchmarks=[add3,max4]",
        "objective.J=min(w, clip(w, 1 - low, 1 + high))*A",
        "tracking.group=a,b",
        "seed=1,",
    ],
)
def test_one_value_stays_what_it_was(word: str) -> None:
    assert axes_of([word]) == {}


def test_its_runs_are_those_of_single_commands(tmp_path: Path) -> None:
    words = ["seed=0,1", "objective=tepo,gspo", "train.learning_rate=1e-4,4e-4", "train.steps=2"]
    ((study, units),) = plan_sweep(words, axes_of(words), tmp_path)
    single = {
        run_id(compose([f"seed={seed}", f"objective={name}", f"train.learning_rate={rate}", "train.steps=2"]))
        for seed in (0, 1)
        for name in ("tepo", "gspo")
        for rate in ("1e-4", "4e-4")
    }
    assert {unit.id for unit in units} == single
    assert study.baseline == "tepo"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["scale=laptop,paper", "seed=0,1"], "unknown scale option 'laptop,paper'"),
        (["seed=1,1"], "a seed is listed twice"),
        (["objective=gspo,tpo"], "unknown objective option 'tpo'"),
        (["train.steps=1,two"], "train.steps"),
    ],
)
def test_a_wrong_value_is_named(words: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        plan_sweep(words, axes_of(words), tmp_path)


def test_a_dry_run_shows_every_run_and_leaves_nothing(tmp_path: Path) -> None:
    words = ("train", "seed=range(2)", "objective=gspo,tepo", "-m", "--jobs", "2")
    assert tepo(*words, "--dry-run", cwd=tmp_path).stderr.startswith("4 runs, 4 to do: ")
    tepo(*words, "train.stepz=2", cwd=tmp_path, code=2)
    assert "of Hydra's sweeps is not understood" in tepo("train", "seed=interval(0,1)", cwd=tmp_path, code=2).stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_all_runs_are_made_and_the_table_printed(tmp_path: Path) -> None:
    words = ("train", *SMALL, "train.steps=1", "data.benchmarks=[add3]", "objective=gspo,grpo_dapo", "--jobs", "2")
    done = tepo(*words, cwd=tmp_path, **few_problems(tmp_path))
    assert re.search(r"^gspo +\d+\.\d.*\n(?:.*\n)?grpo_dapo +\d+\.\d", done.stdout, re.M)
    assert len(list((tmp_path / "runs").glob("*/eval/add3/result.json"))) == 2
    again = tepo(*words, cwd=tmp_path, **few_problems(tmp_path))
    assert again.stdout == done.stdout
    assert "nothing to do" in again.stderr
