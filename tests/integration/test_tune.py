import csv
import json
import re
from pathlib import Path

import pytest

from tepo.common.files import write_json
from tepo.launch.local import command
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.procedural import generator
from tepo.studies.plan_studies import plan_all
from tepo.studies.tuning_result import tuned_rows
from tepo_cli.main import app
from tests.support.commands import Started, started, tepo, until
from tests.support.runs import SMALL, few_problems, write

pytestmark = pytest.mark.disaster

STUDY = f"""
title: a tuned study
baseline: GSPO
rows:
  - {{label: untrained, base: true}}
  - {{label: GSPO, objective: gspo}}
  - {{label: GRPO, objective: grpo_dapo}}
tune: {{draws: 2, seeds: [50], space: {{train.learning_rate: {{log: [1e-5, 1e-3]}}, train.epochs: [1, 2]}}}}
scales:
  laptop:
    models: [laptop]
    seeds: [0]
    overrides: [{", ".join(SMALL)}, train.steps=2, train.validation_problems=10, 'data.benchmarks=[add3,max4]']
"""


SHORTLIST = "draws: 3, default: true, seeds: [50, 51], shortlist: {after: 1, keep: 1}"


def own(folder: Path, study: str) -> dict[str, str]:
    """The environment that has the study."""
    write(folder / "experiments/my_tuning.yaml", study)
    return few_problems(folder)


def test_a_tuned_study_from_plan_to_table_survives_a_kill(tmp_path: Path) -> None:
    """Killed once it has something of the second phase, it goes on where it was."""
    env = own(tmp_path, STUDY.replace("draws: 2, seeds: [50]", SHORTLIST))

    def run(command: str, *words: str | Path) -> str:
        done = tepo(command, "my-tuning", "--store", tmp_path / "runs", *words, cwd=tmp_path, **env)
        return " ".join((done.stdout + done.stderr).split()) if command != "table" else done.stdout

    planned = run("plan")
    assert "11 runs, 11 to do" in planned

    words = ("ablate", "my-tuning", "--store", tmp_path / "runs", "--jobs", "1")
    killed = started(*words, cwd=tmp_path, **env)
    until(lambda: len(list(tmp_path.glob("runs/*/validation.json"))) > 10, killed)  # the first phase has ten
    killed.kill()
    assert len(list(tmp_path.glob("runs/*/eval/*/result.json"))) == 2  # those of the base: nothing is chosen

    printed = run("ablate")
    assert printed.count("on the shortlist of") == 2
    chosen = dict(re.findall(r"chosen for (\w+): (.+?) \(", printed))
    assert list(chosen) == ["GSPO", "GRPO"]
    assert "15 runs, 0 to do" in run("plan")
    measured = {path.parents[2].name for path in tmp_path.glob("runs/*/eval/*/result.json")}
    validated = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("runs/*/validation.json")}
    assert len(measured) == 3  # the base and the two chosen rows, on which nothing was tuned
    assert len(validated) == 2 * (2 + 3 + 1)
    assert not measured & set(validated)
    assert all(len(one["metrics"]["val-aux/add3/right@4"]) == 10 for one in validated.values())

    lines = list(csv.DictReader(run("table", "--format", "csv").splitlines()))
    settings = {line["label"]: line["value"] or line["text"] for line in lines if line["column"] == "setting"}
    assert settings == {"untrained": "", **chosen}


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


def test_no_test_problem_is_loaded_before_the_choice(tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    without = "\n".join(line for line in STUDY.splitlines() if "label: GRPO" not in line)
    Started(_choose_without_tests, str(tmp_path), str(answer), cwd=tmp_path, **own(tmp_path, without)).end()
    chosen, reported = json.loads(answer.read_text())
    assert set(chosen) == {"GSPO"}
    assert all(draw in (0, 1) for draw in chosen.values())
    assert reported == ["untrained", "GSPO"]
