"""The hand-made cases, every category: what the grader accepts and what it refuses."""

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from perf.grader_quality import case_rows
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.grader import Grader, GraderOptions

CASES = Path(__file__).parents[2] / "data" / "grader_cases.jsonl"


def test_the_hand_made_cases_are_judged_as_by_hand() -> None:
    """Golds named by id need the benchmarks (TEPO_DATA=DIR); the others are always graded."""
    data = os.environ.get("TEPO_DATA")
    rows = case_rows(CASES, Path(data) if data else None)
    assert len(rows) >= 700
    with Grader(GraderOptions(fallbacks=("phrase", "formula", "bare"), timeout=20, workers=2)) as grader:
        verdicts = grader.grade([(gold, response) for _, gold, response, _ in rows])
    wrong = [(row, verdict.reason) for row, verdict in zip(rows, verdicts, strict=True) if verdict.correct != row[3]]
    assert not wrong
    assert not Counter(verdict.reason for verdict in verdicts).keys() & {"unreadable", "timeout", "crash", "memory"}


def test_every_category_holds_right_and_wrong_answers() -> None:
    sides: dict[str, set[bool]] = {}
    for line in CASES.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        sides.setdefault(case["category"], set()).add(case["correct"])
    assert len(sides) >= 25
    assert [category for category, found in sides.items() if found != {True, False}] == []


@pytest.mark.parametrize(
    ("gold", "answer", "tolerance", "expected"),
    [
        ("3.83e35", "3.81 \\times 10^{35}", 0.01, True),
        ("3.83e35", "3.7e35", 0.01, False),
        ("0.5613", "0.56", 0.01, True),
        ("0.5613", "0.56", 0.0, False),
        ("2.78", "\\frac{25}{9}", 0.01, True),
        ("1.41", "\\sqrt{2}", 0.01, True),
        ("1.41", "\\sqrt{3}", 0.01, False),
    ],
)
def test_relative_tolerance_is_relative_to_the_gold(gold: str, answer: str, tolerance: float, expected: bool) -> None:
    with Grader(GraderOptions(relative_tolerance=tolerance, workers=1, timeout=20)) as grader:
        assert grader.grade([(gold, f"\\boxed{{{answer}}}")])[0].correct is expected


def test_absolute_tolerance() -> None:
    with Grader(GraderOptions(absolute_tolerance=0.1, workers=1)) as grader:
        assert [verdict.correct for verdict in grader.grade([("3", "\\boxed{3.05}"), ("3", "\\boxed{3.2}")])] == [
            True,
            False,
        ]


def test_olympiadbench_takes_the_decimals_that_its_own_judge_takes() -> None:
    options = load_benchmark("olympiadbench").grader
    pairs = [
        ("\\frac{4}{9}", "0.44444444"),
        ("2-\\sqrt{3}", "0.26794919"),
        ("\\frac{4}{9}", "0.444444"),
        ("2-\\sqrt{3}", "0.26794929"),
        ("3", "3.0000001"),
    ]
    with Grader(replace(options, workers=1, timeout=20)) as grader:
        assert [
            verdict.correct for verdict in grader.grade([(gold, f"\\boxed{{{answer}}}") for gold, answer in pairs])
        ] == [True, True, False, False, False]
