"""Answers graded per second and core: this grader beside plain math-verify, in one run on the same pairs.

    python -m perf.grader_throughput [--data DIR]

"rollout": what a training step grades:
golds with several responses each, many of them the gold itself or a plain number.
"fresh": pairs that need sympy, none seen before. "wrong": pairs that need sympy and differ.
Workers are started and both sides are warm before the clock runs; rates are per second of CPU time
(parent and worker together). Prints the ratio for each batch."""

import argparse
import json
import logging
import os
import random
import time
from collections.abc import Sequence
from operator import eq
from pathlib import Path

from tepo.problems.grader import Grader, GraderOptions

Pairs = list[tuple[str, str]]


def rollout(golds: Sequence[str], draw: random.Random, groups: int = 64, samples: int = 16) -> Pairs:
    """Per gold 16 responses of about 1,500 characters: half right as the gold is written, a quarter one wrong number,
    the rest spread over a few other spellings and mistakes, repeated as samples of one policy repeat each other."""
    prose = "We compute step by step and check each case of the problem again. " * 22
    pairs = []
    for gold in draw.choices(golds, k=groups):
        others = [
            str(draw.randint(2, 200)),
            f"{gold}+1",
            f"x = {gold}",
            f"\\frac{{{draw.randint(1, 9)}}}{{{draw.randint(2, 9)}}}",
        ]
        for _ in range(samples):
            roll = draw.random()
            answer = gold if roll < 0.5 else others[0] if roll < 0.75 else draw.choice(others)
            pairs.append((gold, f"{prose}So the answer is $\\boxed{{{answer}}}$."))
    return pairs


def fresh(draw: random.Random, count: int = 300) -> Pairs:
    """Equal pairs in another spelling, all different from each other."""
    made = []
    for _ in range(count):
        a, b, c = (draw.randint(2, 999) for _ in range(3))
        made.append(
            draw.choice(
                [
                    (f"\\frac{{{a}+\\sqrt{{{b}}}}}{{{c}}}", f"\\frac{{{a}}}{{{c}}}+\\frac{{\\sqrt{{{b}}}}}{{{c}}}"),
                    (f"(x+{a})(x-{b})", f"x^2+{a - b}x-{a * b}".replace("+-", "-")),
                    (f"{a}\\pi-{b}\\sqrt{{{c}}}", f"-{b}\\sqrt{{{c}}}+{a}\\pi"),
                    (f"{a}\\ln {b}", f"\\ln ({b}^{{{a}}})"),
                ]
            )
        )
    return [(gold, f"\\boxed{{{answer}}}") for gold, answer in made]


def wrong(draw: random.Random, count: int = 300) -> Pairs:
    """Pairs that look alike and differ."""
    return [(gold, response.replace("\\boxed{", "\\boxed{1+")) for gold, response in fresh(draw, count)]


def math_verify(pairs: Pairs, golds: dict[str, list[object]]) -> list[bool]:
    """Plain math-verify, golds boxed and parsed once each (as its users cache them)."""
    from math_verify import parse, verify

    verdicts = []
    for gold, response in pairs:
        if gold not in golds:
            golds[gold] = parse(f"\\boxed{{{gold}}}")
        verdicts.append(bool(verify(golds[gold], parse(response))))
    return verdicts


def cpu_seconds(workers: Sequence[int] = ()) -> float:
    """CPU time of this process and of the given worker processes:
    what one core would need, however busy the machine is."""
    ticks = 0
    for pid in workers:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def measure(
    golds: Sequence[str] = (), groups: int = 64, count: int = 300, turns: int = 10
) -> dict[str, dict[str, float]]:
    """Rates and their ratio for each batch; both sides are warm and take turns, a part of the batch each."""
    logging.disable(logging.CRITICAL)
    golds = golds or [str(number) for number in range(3, 900, 7)] + ["\\frac{1}{2}", "3\\sqrt{13}", "(1,2)", "x^2+1"]
    draw = random.Random(0)
    batches = {"rollout": rollout(golds, draw, groups), "fresh": fresh(draw, count), "wrong": wrong(draw, count)}
    warm = fresh(random.Random(1), 20)
    with Grader(GraderOptions(workers=1, recycle=10**6)) as grader:
        grader.grade(warm)
        math_verify(warm, {})
        return {name: beside(grader, pairs, -(-len(pairs) // turns)) for name, pairs in batches.items()}


def beside(grader: Grader, pairs: Pairs, size: int) -> dict[str, float]:
    """Both graders on the pairs, `size` of them at a time, so that a slow minute of the machine meets both."""
    workers = grader.worker_pids()
    golds: dict[str, list[object]] = {}
    ours, theirs, same = 0.0, 0.0, 0
    for start in range(0, len(pairs), size):
        part = pairs[start : start + size]
        before = cpu_seconds(workers)
        verdicts = [verdict.correct for verdict in grader.grade(part)]
        between = cpu_seconds(workers)
        others = math_verify(part, golds)
        ours, theirs = ours + between - before, theirs + cpu_seconds(workers) - between
        same += sum(map(eq, verdicts, others))
    rates = {
        "tepo_per_core_second": round(len(pairs) / ours, 1),
        "math_verify_per_core_second": round(len(pairs) / theirs, 1),
    }
    return {"pairs": len(pairs), **rates, "ratio": round(theirs / ours, 2), "verdicts_equal": same}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with math500.jsonl, whose golds the rollout then uses")
    options = parser.parse_args()
    golds = (
        [
            json.loads(line)["answer"]
            for line in (options.data / "math500.jsonl").read_text(encoding="utf-8").split("\n")
            if line
        ]
        if options.data
        else []
    )
    for name, row in measure(golds).items():
        rates = (
            f"tepo {row['tepo_per_core_second']:8.0f}/s, math-verify {row['math_verify_per_core_second']:8.0f}/s, "
            f"ratio {row['ratio']:6.2f}"
        )
        print(f"{name:8} {row['pairs']:5} pairs: {rates}; {row['verdicts_equal']} verdicts equal")


if __name__ == "__main__":
    main()
