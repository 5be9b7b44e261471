"""What commands measure, print and draw: twice the same, with each other, and as docs/tables.md has it."""

import csv
import json
import re
import shlex
import signal
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from tepo.policy.model.model_location import resolve
from tepo.problems.hashes import set_hash
from tepo.problems.problem import Problem
from tepo.problems.procedural.generator import generate
from tests.support.commands import OwnSignal, started, tepo
from tests.support.runs import SMALL, few_problems, write, write_study

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "tables.md").read_text()
SHOWN = re.findall(r"^    tepo (.+)\n\n!\[.+\]\((.+)\)$", PAGE, re.MULTILINE)
WORDS = (*SMALL, "train.steps=1", "data.benchmarks=[add3,max4]")
ROWS = {"untrained": {"base": True}, "TEPO ({steps} steps)": {"objective": "tepo", "laptop": ["objective.beta=1"]}}


def drawn(svg: str) -> str:
    """What a picture says, as a hash of its data and marks: fonts and versions move its bytes."""
    return re.findall(r"<!-- chart (\w+) -->", svg)[0]


@pytest.mark.disaster
@pytest.mark.parametrize(("command", "picture"), SHOWN)
def test_the_command_draws_the_picture(command: str, picture: str, tmp_path: Path) -> None:
    assert len(SHOWN) == PAGE.count("![") >= 5
    printed = tepo(*shlex.split(command), cwd=tmp_path).stdout
    made = [path.read_text() for path in tmp_path.rglob("*.svg")] or [printed]
    assert drawn((DOCS / picture).read_text()) in [drawn(svg) for svg in made]


@pytest.mark.slow
def test_eval_and_table_print_the_same_intervals(tmp_path: Path) -> None:
    """Problems lie in the file as add3-2, add3-10; a table's frame has them as add3-10, add3-2."""
    store, own = tmp_path / "runs", few_problems(tmp_path)
    write_study(tmp_path, "mine", ROWS, *WORDS)
    assert "TEPO (1 steps)" in tepo("ablate", "mine", "--store", store, **own).stdout
    (run,) = (path.parent.name for path in store.glob("*/manifest.json"))
    csv_table = tepo("table", "mine", "--store", store, "--format", "csv", **own).stdout
    lines = list(csv.DictReader(csv_table.splitlines()))
    models = {"untrained": ("add3", "max4", "--model", "package:laptop")}
    models["TEPO (1 steps)"] = ("all", "--model", run)
    for label, words in models.items():
        done = tepo("eval", *words, "--store", store, "--quiet", **own)
        printed = {}
        for line in done.stdout.splitlines():
            cells = [cell.strip() for cell in line.split("│")]
            printed |= {cells[1]: cells[3]} if "±" in line else {}
        table = {line["column"]: line for line in lines if line["label"] == label}
        columns = {"all samples": "average", "mean of benchmarks": "average"}  # of one size, so the table has it once
        for name, column in ({"add3": "add3", "max4": "max4"} | columns).items():
            value, low, high = (float(table[column][key]) for key in ("value", "low", "high"))
            assert printed[name] == f"{value:.2f} ± {(high - low) / 2:.2f}"
        for name in ("add3", "max4"):  # every digit, not those that are printed
            (folder,) = store.glob(f"{'base-*' if label == 'untrained' else run}/eval/{name}")
            ends = json.loads((folder / "result.json").read_text())["interval"]
            assert [f"{100 * end:.6g}" for end in ends] == [table[name]["low"], table[name]["high"]]


NAMES = ("aime24", "aime25", "amc", "math500", "omni_math", "olympiadbench", "minerva")  # the papers'


def make_sets(folder: Path) -> dict[str, str]:
    """Stand-ins for the published benchmarks, of three generated problems each: declared in a user's folder in front of
    tepo's own, rows in a folder for TEPO_DATA. Returns the environment."""
    for number, name in enumerate((*NAMES, "gsm8k")):
        made = enumerate(generate({"add3": 1.0, "gcd": 1.0}, 3, number, "test"))
        problems = [Problem(f"{name}-{index}", one.prompt, one.answer) for index, one in made]
        rows = [{"id": one.id, "problem": one.prompt, "answer": one.answer} for one in problems]
        write(folder / "data" / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        drawn = {"samples": 2, "temperature": 0.6} if name in NAMES[:3] else {"samples": 1, "temperature": 0.0}
        source = {"path": "json", "data_files": ["nowhere.jsonl"]}
        declared = {"title": name, "dataset": source, "count": 3, "hash": set_hash(problems), "max_new_tokens": 72}
        write(folder / "evals" / f"{name}.yaml", yaml.safe_dump(declared | drawn))
    return {"TEPO_PATH": str(folder), "TEPO_DATA": str(folder / "data")}


def rows_of(folder: Path) -> list[dict]:
    return pq.read_table(folder / "samples.parquet").to_pylist()


def test_all_of_a_model_is_the_papers_seven_with_both_averages(tmp_path: Path) -> None:
    sets = make_sets(tmp_path / "sets")
    words = ("eval", "all", "--model", resolve("package:laptop"), "--quiet", "--store", tmp_path / "runs")
    done = tepo(*words, **sets)
    (base,) = (tmp_path / "runs").iterdir()
    assert sorted(path.name for path in (base / "eval").iterdir()) == sorted(NAMES)
    correct = {name: [row["correct"] for row in rows_of(base / "eval" / name)] for name in NAMES}
    assert [len(correct[name]) for name in NAMES] == [6, 6, 6, 3, 3, 3, 3]
    everything = np.mean([value for found in correct.values() for value in found])
    plain = np.mean([np.mean(found) for found in correct.values()])
    assert 0 < plain != everything
    lines = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if line.startswith("│")}
    assert f" {100 * everything:.2f} ±" in lines["all samples"]
    assert f" {100 * plain:.2f} ±" in lines["mean of benchmarks"]
    shown = tepo(*words, "--dry-run", **sets)
    assert shown.stdout.count("; done; ") == 7


def test_a_killed_evaluation_goes_on_and_gives_the_same_rows(tmp_path: Path) -> None:
    words = ("eval", "max4", "--model", "package:laptop", "--quiet", "--limit", "128", "--store")
    after_a_part = OwnSignal(signal.SIGKILL, tmp_path, "os.rename */parts/*.parquet", 2)
    started(*words, tmp_path / "cut", own_signal=after_a_part).end(code=-signal.SIGKILL)
    (part,) = (tmp_path / "cut").rglob("parts/*.parquet")
    kept = pq.read_table(part).to_pylist()
    for place in ("cut", "whole"):
        tepo(*words, tmp_path / place)
    cut, whole = (next((tmp_path / place).rglob("samples.parquet")).parent for place in ("cut", "whole"))
    assert len(rows_of(whole)) == 512
    assert rows_of(cut) == rows_of(whole)
    assert rows_of(cut)[: len(kept)] == kept
    assert (cut / "result.json").read_text() == (whole / "result.json").read_text()
