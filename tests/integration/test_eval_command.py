import json
import signal
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import yaml

from tepo.policy.model.model_location import resolve
from tepo.problems.hashes import set_hash
from tepo.problems.problem import Problem
from tepo.problems.procedural.generator import generate
from tests.support.commands import OwnSignal, started, tepo
from tests.support.runs import write

LAPTOP = ("--model", "package:laptop", "--quiet")
NAMES = ("aime24", "aime25", "amc", "math500", "omni_math", "olympiadbench", "minerva")  # the papers'
LONG = (
    "Find the number of ordered pairs of positive integers whose product "
    "divides the sum of the first {} squares exactly."
)


def make_sets(folder: Path, *, long: bool = False, **more: object) -> dict[str, str]:
    """Stand-ins for the published benchmarks, of three generated problems each: declared in a user's folder in front of
    tepo's own, rows in a folder for TEPO_DATA. Returns the environment. long: math500 is in words."""
    for number, name in enumerate((*NAMES, "gsm8k")):
        problems = [
            Problem(
                f"{name}-{index}", LONG.format(100 + index) if long and name == "math500" else one.prompt, one.answer
            )
            for index, one in enumerate(generate({"add3": 1.0, "gcd": 1.0}, 3, number, "test"))
        ]
        write_rows(folder / "data" / f"{name}.jsonl", problems)
        drawn = {"samples": 2, "temperature": 0.6} if name in NAMES[:3] else {"samples": 1, "temperature": 0.0}
        source = {"path": "json", "data_files": ["nowhere.jsonl"]}
        declared = {"title": name, "dataset": source, "count": 3, "hash": set_hash(problems), "max_new_tokens": 72}
        write(folder / "evals" / f"{name}.yaml", yaml.safe_dump(declared | drawn | more))
    return {"TEPO_PATH": str(folder), "TEPO_DATA": str(folder / "data")}


def write_rows(path: Path, problems: list[Problem]) -> None:
    rows = [json.dumps({"id": one.id, "problem": one.prompt, "answer": one.answer}) for one in problems]
    write(path, "\n".join(rows) + "\n")


def rows_of(folder: Path) -> list[dict]:
    return pq.read_table(folder / "samples.parquet").to_pylist()


def test_contamination_counts_and_lists_by_benchmark(tmp_path: Path) -> None:
    sets, own = make_sets(tmp_path, long=True), tmp_path / "own.jsonl"
    copy = Problem("copy", LONG.format("\\textbf{101}").replace("number", "NUMBER,"), "1")
    write_rows(own, [copy, Problem("other", "How many primes lie between ten and twenty, both included?", "4")])
    done = tepo("data", "contamination", own, "--rows", **sets)
    counts = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.split()[1:2] == ["3"]}
    assert len(counts) == 8
    assert counts["aime24"] == ["3", "0", "0"]
    assert "math500-1 copy 1.000" in done.stdout
    assert f"1 of 2 problems of {own} are left out" in done.stdout


def test_all_of_a_model_is_the_papers_seven_with_both_averages(tmp_path: Path) -> None:
    sets = make_sets(tmp_path / "sets")
    words = ("eval", "all", "--model", resolve("package:laptop"), "--quiet", "--store", tmp_path / "runs")
    done = tepo(*words, **sets)
    (base,) = (tmp_path / "runs").iterdir()
    assert sorted(path.name for path in (base / "eval").iterdir()) == sorted(NAMES)
    correct = {name: [row["correct"] for row in rows_of(base / "eval" / name)] for name in NAMES}
    assert {name: len(found) for name, found in correct.items()} == {
        name: 6 if name in NAMES[:3] else 3 for name in NAMES
    }
    everything = np.mean([value for found in correct.values() for value in found])
    plain = np.mean([np.mean(found) for found in correct.values()])
    assert 0 < plain != everything
    lines = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if line.startswith("│")}
    assert f" {100 * everything:.2f} ±" in lines["all samples"]
    assert f" {100 * plain:.2f} ±" in lines["mean of benchmarks"]
    shown = tepo(*words, "--dry-run", **sets)
    assert shown.stdout.count("; done; ") == 7


def test_a_killed_evaluation_goes_on_and_gives_the_same_rows(tmp_path: Path) -> None:
    words = ("eval", "max4", *LAPTOP, "--limit", "128", "--store")
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
