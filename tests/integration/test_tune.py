"""A study that tunes, from file to figure through the commands; its choice looks at no test problem."""

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
from tests.integration.commands import Started, started, tepo, until
from tests.integration.slurm_cluster import cluster
from tests.unit.training.small import SMALL, few_problems, write

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


def own(folder: Path, *without: str) -> dict[str, str]:
    """The study without some rows, and the environment that has it."""
    lines = [line for line in STUDY.splitlines() if not any(f"label: {label}," in line for label in without)]
    write(folder / "experiments/my_tuning.yaml", "\n".join(lines))
    return few_problems(folder)


def run(folder: Path, command: str, *words: str | Path) -> str:
    done = tepo(command, "my-tuning", "--store", folder / "runs", *words, cwd=folder, TEPO_PATH=str(folder))
    return " ".join((done.stdout + done.stderr).split()) if command != "table" else done.stdout


def test_a_tuned_study_from_plan_to_page(tmp_path: Path) -> None:
    own(tmp_path)
    planned = run(tmp_path, "plan")
    assert "5 runs, 5 to do" in planned
    assert planned.count("validation") >= 4
    assert "then the settings chosen by validation, 2 runs, priced as the first of them" in planned

    printed = run(tmp_path, "ablate")
    chosen = dict(re.findall(r"chosen for (\w+): (learning_rate=[\d.e-]+, epochs=\d) \(", printed))
    assert list(chosen) == ["GSPO", "GRPO"]
    assert "Validation accuracy over learning_rate" in printed
    assert "7 runs: nothing to do" in run(tmp_path, "ablate")
    assert "7 runs, 0 to do" in run(tmp_path, "plan")

    measured = {path.parents[2].name: path for path in tmp_path.glob("runs/*/eval/*/result.json")}
    validated = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("runs/*/validation.json")}
    assert len(measured) == 3  # the base and the two chosen rows, on which nothing was tuned
    assert len(validated) == 4
    assert not set(measured) & set(validated)

    lines = list(csv.DictReader(run(tmp_path, "table", "--format", "csv").splitlines()))
    settings = {line["label"]: line["value"] or line["text"] for line in lines if line["column"] == "setting"}
    assert settings == {"untrained": "", **chosen}
    scores = [float(line["value"]) for line in lines if line["row"].startswith("tried/")]
    shares = [one["metrics"]["val-core/average"] for one in validated.values()]
    assert sorted(scores) == pytest.approx(sorted(100 * share for share in shares), rel=1e-4)

    written = [Path(word) for word in run(tmp_path, "figure", "--out", tmp_path / "figures").split()]
    names = {path.name: path for path in written}
    assert {"figure-my_tuning-settings.svg", "figure-my_tuning-curves.svg"} < set(names)
    for text in ("validation accuracy, %", "GSPO", "GRPO"):
        assert f">{text}</text>" in names["figure-my_tuning-settings.svg"].read_text()
    run(tmp_path, "report", "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<figcaption>Validation accuracy over learning_rate; " in page
    assert page.count("<figcaption>Training curves<") == 1


def test_all_phases_of_a_shortlist_survive_a_kill(tmp_path: Path) -> None:
    """Killed once it has something of the second phase, it goes on where it was, and chooses what it would have."""
    more = "draws: 3, default: true, seeds: [50, 51], shortlist: {after: 1, keep: 1}"
    text = STUDY.replace("draws: 2, seeds: [50]", more)
    env = own(tmp_path)
    write(tmp_path / "experiments/my_tuning.yaml", text)
    planned = run(tmp_path, "plan")
    assert "11 runs, 11 to do" in planned
    assert "then the best draws with the other tuning seeds, 2 runs" in planned
    assert "Largest gap of the search: learning_rate from" in planned

    words = ("ablate", "my-tuning", "--store", tmp_path / "runs", "--jobs", "1")
    killed = started(*words, cwd=tmp_path, **env)
    until(lambda: len(list(tmp_path.glob("runs/*/validation.json"))) > 10, killed)  # the first phase has ten
    killed.kill()
    assert len(list(tmp_path.glob("runs/*/eval/*/result.json"))) == 2  # those of the base: nothing is chosen

    printed = run(tmp_path, "ablate")
    assert printed.count("on the shortlist of") == printed.count("chosen for") == 2
    assert "15 runs, 0 to do" in run(tmp_path, "plan")
    validated = list(tmp_path.glob("runs/*/validation.json"))
    assert len(validated) == 2 * (2 + 3 + 1)
    assert all(len(json.loads(path.read_text())["metrics"]["val-aux/add3/right@4"]) == 10 for path in validated)


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
    Started(_choose_without_tests, str(tmp_path), str(answer), cwd=tmp_path, **own(tmp_path, "GRPO")).end()
    chosen, reported = json.loads(answer.read_text())
    assert set(chosen) == {"GSPO"}
    assert all(draw in (0, 1) for draw in chosen.values())
    assert reported == ["untrained", "GSPO"]


@pytest.mark.slurm
def test_both_phases_go_out_by_slurm(tmp_path: Path) -> None:
    with cluster():
        env = own(tmp_path, "untrained", "GRPO")
        words = ("--launcher", "slurm", "--slurm", "partition=main", "--store", tmp_path / "runs")
        done = started("ablate", "my-tuning", *words, cwd=tmp_path, **env).end()
    assert "chosen for GSPO" in done.stderr
    assert len(list(tmp_path.glob("runs/*/validation.json"))) == 2
    assert len({path.parents[2].name for path in tmp_path.glob("runs/*/eval/*/result.json")}) == 1
