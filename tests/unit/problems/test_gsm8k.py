"""GSM8K as a benchmark: its protocol, its rows, and how the grader takes the spellings of its answers."""

import re
from pathlib import Path

from tepo.problems.benchmarks import load_benchmark
from tepo.problems.grader import Grader
from tepo.problems.hashes import pinned_rows
from tepo.problems.prompt_format import render_prompt

SPELLINGS = (
    "{}",
    "\\${}",
    "${}$",
    "{}.00",
    "\\text{{{}}}",
    "{} \\text{{ dollars}}",
    "{}\\,\\text{{eggs}}",
    "x = {}",
)  # as models write an integer that is an amount


def test_the_protocol() -> None:
    benchmark = load_benchmark("gsm8k")
    assert (benchmark.count, benchmark.samples, benchmark.temperature) == (1319, 1, 0.0)
    assert benchmark.max_new_tokens < 4096  # Qwen2.5-Math-1.5B has no more positions, and the prompt takes some
    assert len(pinned_rows("gsm8k")) == 1319
    asked = render_prompt("How many?", None, prompt=benchmark.prompt, wrap="base")
    assert asked.startswith("Question:\nHow many?\n")
    assert "\\boxed{}" in asked


def test_the_real_set_and_every_spelling_of_its_golds(real_sets: Path) -> None:
    problems = load_benchmark("gsm8k").load_problems()
    assert [problem.id for problem in problems] == [f"gsm8k-{index}" for index in range(1319)]
    golds = sorted({problem.answer for problem in problems})
    assert all(re.fullmatch(r"-?[0-9]+", gold) for gold in golds)
    spelt = [(gold, spelling.format(gold)) for gold in golds for spelling in SPELLINGS]
    spelt += [(gold, f"{int(gold):,}") for gold in golds]
    spelt += [(gold, f"{int(gold):,}".replace(",", "{,}")) for gold in golds]
    wrong = [(gold, str(int(gold) + 1)) for gold in golds] + [(gold, gold + "0") for gold in golds if gold != "0"]
    with Grader(load_benchmark("gsm8k").grader) as grader:
        verdicts = grader.grade([(gold, f"So it is \\boxed{{{text}}}.") for gold, text in spelt + wrong])
    right = [verdict.correct for verdict in verdicts]
    assert [pair for pair, verdict in zip(spelt, right, strict=False) if not verdict] == []
    assert not any(right[len(spelt) :])
