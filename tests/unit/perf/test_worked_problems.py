"""The word problems of `perf.gpu smollm`: solutions that hold, and benchmarks that are apart from what is trained."""

import json
import re
from itertools import islice
from pathlib import Path

import pytest

from perf.gpu import smollm
from perf.gpu.record import NotRun
from perf.gpu.smollm import MODEL
from perf.gpu.worked_problems import BENCHMARKS, problems, write
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.grader import Grader
from tepo.problems.sources import read_problem_file

STEP = re.compile(r"(\d+) ([-+*]) (\d+) = (-?\d+)\. ")


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("name", [None, *BENCHMARKS])
def test_solutions_hold_and_have_the_numbers_of_their_text(name: str | None, few: bool) -> None:
    source = problems("seed", BENCHMARKS[name], True, few) if name else problems("seed", few=few)
    for one in islice(source, 200):
        done, known = STEP.findall(one.solution), set(re.findall(r"\d+", one.text))
        for left, sign, right, result in done:
            assert {left, right} <= known
            assert int(result) == {"+": int(left) + int(right), "-": int(left) - int(right)}.get(
                sign, int(left) * int(right)
            )
            known.add(result)
        assert STEP.sub("", one.solution) == f"\\boxed{{{one.answer}}}"
        assert one.answer in range(8) or (not few and one.answer > 0)
        assert "{" not in one.text


def test_what_is_measured_was_not_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = write(tmp_path, 500, 20, few=False)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    trained = {(bare(one.prompt), *re.findall(r"\d+", one.prompt)) for one in read_problem_file(Path(made["data"]))}
    for name in BENCHMARKS:
        measured = {(bare(one.prompt), *re.findall(r"\d+", one.prompt)) for one in load_benchmark(name).load_problems()}
        assert len(measured) > 10
        assert not measured & trained
        same_wording = {text for text, *_ in measured} & {text for text, *_ in trained}
        assert bool(same_wording) == (name == "other_numbers")


def bare(text: str) -> str:
    """A text without its names, things and numbers."""
    return re.sub(r"(?<![.?] )\b[A-Z]\w+|\d+|\b[a-z]+s\b", "_", text)


def test_without_a_model_the_part_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MODEL, raising=False)
    with pytest.raises(NotRun, match="--model DIR"):
        next(smollm.smollm("cpu", small=False))


def test_a_worked_solution_is_graded_right() -> None:
    one = next(problems("seed"))
    with Grader() as grader:
        right, wrong = grader.grade([(str(one.answer), one.solution), (str(one.answer + 1), one.solution)])
    assert (right.correct, wrong.correct) == (True, False)


def test_same_seed_same_problems(tmp_path: Path) -> None:
    rows = [list(islice(problems("seed"), 5)) for _ in range(2)]
    assert rows[0] == rows[1] != list(islice(problems("other"), 5))
    write(tmp_path, 30, 4, few=True)
    assert len({json.loads(line)["problem"] for line in (tmp_path / "train.jsonl").read_text().splitlines()}) == 30
