import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from perf.grader_quality import AskedAnswer, case_rows
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.grader import Grader, GraderOptions, Verdict, given_up
from tests.unit.grader.test_budget import ENDLESS, SUMS, TOWER

CASES = Path(__file__).parents[2] / "data" / "grader_cases.jsonl"


OPTIONS = GraderOptions(fallbacks=("phrase", "formula", "bare"), workers=2)
DEAREST = 20


@pytest.fixture(scope="module")
def rows() -> list[AskedAnswer]:
    """Golds named by id need the benchmarks (TEPO_DATA=DIR); the others are always graded."""
    data = os.environ.get("TEPO_DATA")
    return case_rows(CASES, Path(data) if data else None)


@pytest.fixture(scope="module")
def verdicts(rows: list[AskedAnswer]) -> list[Verdict]:
    with Grader(OPTIONS) as grader:
        return grader.grade([(gold, response) for _, gold, response, _ in rows])


def test_the_hand_made_cases_are_judged_as_by_hand(rows: list[AskedAnswer], verdicts: list[Verdict]) -> None:
    assert len(rows) >= 700
    wrong = [(row, verdict.reason) for row, verdict in zip(rows, verdicts, strict=True) if verdict.correct != row[3]]
    assert not wrong
    assert not Counter(verdict.reason for verdict in verdicts).keys() & {"unreadable", "timeout", "crash", "memory"}


@pytest.mark.disaster
def test_four_busy_processes_change_no_verdict_and_no_reason(rows: list[AskedAnswer], verdicts: list[Verdict]) -> None:
    """The dearest of the case file, on as many workers as there are cores, quiet and beside the four; answers at the
    limits beside them. What is judged without a worker, or at a fraction of the budget, has nothing to run out of."""
    chosen = sorted(range(len(rows)), key=lambda index: -verdicts[index].seconds)[:DEAREST]
    limits = [(SUMS[0], f"\\boxed{{{SUMS[1]}}}"), ("7", TOWER), ("3", ENDLESS)]
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        with Grader(OPTIONS) as grader:
            busy = grader.grade([*(rows[index][1:3] for index in chosen), *limits])
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    quiet = [verdicts[index] for index in chosen]
    assert [(one.correct, one.reason) for one in busy[:DEAREST]] == [(one.correct, one.reason) for one in quiet]
    assert [verdict.reason for verdict in busy[DEAREST:]] == ["symbolic", "too much work", "too much work"]
    assert given_up(verdict.reason for verdict in verdicts) == 0


def test_every_category_holds_right_and_wrong_answers() -> None:
    sides: dict[str, set[bool]] = {}
    for line in CASES.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        sides.setdefault(case["category"], set()).add(case["correct"])
    assert len(sides) >= 25
    assert [category for category, found in sides.items() if found != {True, False}] == []


@pytest.mark.parametrize(
    ("gold", "answer", "tolerances", "expected"),
    [
        ("3.83e35", "3.81 \\times 10^{35}", {"relative_tolerance": 0.01}, True),
        ("3.83e35", "3.7e35", {"relative_tolerance": 0.01}, False),
        ("0.5613", "0.56", {"relative_tolerance": 0.01}, True),
        ("0.5613", "0.56", {}, False),
        ("2.78", "\\frac{25}{9}", {"relative_tolerance": 0.01}, True),
        ("1.41", "\\sqrt{2}", {"relative_tolerance": 0.01}, True),
        ("1.41", "\\sqrt{3}", {"relative_tolerance": 0.01}, False),
        ("3", "3.05", {"absolute_tolerance": 0.1}, True),
        ("3", "3.2", {"absolute_tolerance": 0.1}, False),
    ],
)
def test_relative_tolerance_is_relative_to_the_gold(gold: str, answer: str, tolerances: dict, expected: bool) -> None:
    with Grader(GraderOptions(**tolerances, workers=1, timeout=20)) as grader:
        assert grader.grade([(gold, f"\\boxed{{{answer}}}")])[0].correct is expected


def test_olympiadbench_takes_the_decimals_that_its_own_judge_takes() -> None:
    options = load_benchmark("olympiadbench").grader
    right = ("\\frac{4}{9}", "0.44444444"), ("2-\\sqrt{3}", "0.26794919")
    wrong = ("\\frac{4}{9}", "0.444444"), ("2-\\sqrt{3}", "0.26794929"), ("3", "3.0000001")
    with Grader(replace(options, workers=1, timeout=20)) as grader:
        verdicts = grader.grade([(gold, f"\\boxed{{{answer}}}") for gold, answer in (*right, *wrong)])
    assert [verdict.correct for verdict in verdicts] == [True, True, False, False, False]
