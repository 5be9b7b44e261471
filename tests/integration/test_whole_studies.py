"""Studies to their end: tuned, and with runs that fail."""

import json
from pathlib import Path

import pytest

from tepo.common.files import write_json
from tepo.launch.local import command
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.procedural import generator
from tepo.studies.plan_studies import plan_all
from tepo.studies.tuning_result import tuned_rows
from tepo_cli.main import app
from tests.support.commands import Started, tepo
from tests.support.runs import SMALL, few_problems, write, write_study

LONG = {"id": "long", "problem": "1+" * 200 + "1=", "answer": "201"}  # a run meets its limit of tokens late


@pytest.mark.slow
def test_after_two_failures_alike_the_others_do_not_start(tmp_path: Path) -> None:
    data, own = write(tmp_path / "long.jsonl", json.dumps(LONG) + "\n"), few_problems(tmp_path)
    overrides = (*SMALL, "train.steps=1", "data.benchmarks=[add3]", f"data={data}")
    write_study(tmp_path, "mine", {"GRPO/DAPO": "grpo_dapo", "GSPO": "gspo"}, *overrides, seeds=(0, 1, 2))
    said = tepo("ablate", "mine", "--store", tmp_path / "runs", "--jobs", "1", **own, code=1).stderr
    assert len(list((tmp_path / "runs").iterdir())) == 2
    assert "2 of the runs failed:" in said
    assert "two failed alike, so 4 runs did not start" in said


SPACE = {"train.learning_rate": {"log": [1e-5, 1e-3]}, "train.epochs": [1, 2]}
TUNED = (*SMALL, "train.steps=2", "train.validation_problems=10", "data.benchmarks=[add3,max4]")


def _choose_without_tests(folder: str, answer: str) -> None:
    """In a process of its own: every command of phase 1, then the choice, where test problems cannot be loaded."""
    examples = generator.generate_examples

    def without_tests(tasks: dict, count: int, seed: int, split: str) -> list:
        if split == "test":
            raise AssertionError("a test problem was asked for")
        return examples(tasks, count, seed, split)  # type: ignore[arg-type]

    generator.generate_examples = without_tests  # type: ignore[assignment]
    with pytest.raises(AssertionError, match="a test problem"):  # so the loading of a benchmark goes through it
        load_benchmark("add3").load_problems()
    ((study, units),) = plan_all(["my-tuning"], "laptop", store=Path(folder) / "runs")
    for unit in (unit for unit in units if unit.tuning):
        app(command(unit)[4:], standalone_mode=False)
    ((study, units),) = plan_all(["my-tuning"], "laptop", store=Path(folder) / "runs")
    tune = study.tune_at("laptop")
    chosen = {row.first.row_label: row.chosen for row in tuned_rows(units, tune)}
    write_json(Path(answer), [chosen, [unit.label for unit in units if not unit.tuning]])


@pytest.mark.disaster
def test_no_test_problem_is_loaded_before_the_choice(tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    tune = {"draws": 2, "seeds": [50], "space": SPACE}
    rows = {"untrained": {"base": True}, "GSPO": "gspo"}
    write_study(tmp_path, "my_tuning", rows, *TUNED, baseline="GSPO", tune=tune)
    own = few_problems(tmp_path)
    Started(_choose_without_tests, str(tmp_path), str(answer), cwd=tmp_path, **own).end()
    chosen, reported = json.loads(answer.read_text())
    assert set(chosen) == {"GSPO"}
    assert all(draw in (0, 1) for draw in chosen.values())
    assert reported == ["untrained", "GSPO"]
    done = tepo("ablate", "my-tuning", "--store", tmp_path / "runs", cwd=tmp_path, **own)  # goes on with what is chosen
    assert "chosen for GSPO: " in " ".join((done.stdout + done.stderr).split())
    measured = {path.parents[2].name for path in tmp_path.glob("runs/*/eval/*/result.json")}
    assert len(measured) == 2  # the base and the chosen run, on which nothing was tuned
    assert not measured & {path.parent.name for path in tmp_path.glob("runs/*/validation.json")}
