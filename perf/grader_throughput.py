"""Answers graded per second and core: this grader beside plain math-verify, in one run on the same pairs.

    python -m perf.grader_throughput [--data DIR]

"rollout": what a training step grades: golds with several responses each, many of them the gold itself or a plain number.
"fresh": pairs that need sympy, none seen before. "wrong": pairs that need sympy and differ. Workers are started and both sides
are warm before the clock runs; rates are per second of CPU time (parent and worker together). Prints the ratio for each batch."""

import argparse
import json
import logging
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

from tepo.problems.grader import Grader, GraderOptions

Pairs = list[tuple[str, str]]


def rollout(golds: Sequence[str], draw: random.Random, groups: int = 64, samples: int = 16) -> Pairs:
    """Per gold 16 responses of about 1,500 characters: half right as the gold is written, a quarter one wrong number, the rest
    spread over a few other spellings and mistakes, repeated as samples of one policy repeat each other."""
    prose = "We compute step by step and check each case of the problem again. " * 22
    pairs = []
    for gold in draw.choices(golds, k=groups):
        others = [str(draw.randint(2, 200)), f"{gold}+1", f"x = {gold}", f"\\frac{{{draw.randint(1, 9)}}}{{{draw.randint(2, 9)}}}"]
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


def math_verify(pairs: Pairs) -> list[bool]:
    """Plain math-verify, golds boxed and parsed once each (as its users cache them)."""
    from math_verify import parse, verify

    golds: dict[str, list[object]] = {}
    verdicts = []
    for gold, response in pairs:
        if gold not in golds:
            golds[gold] = parse(f"\\boxed{{{gold}}}")
        verdicts.append(bool(verify(golds[gold], parse(response))))
    return verdicts


def cpu_seconds(workers: Sequence[int] = ()) -> float:
    """CPU time of this process and of the given worker processes: what one core would need, however busy the machine is."""
    ticks = 0
    for pid in workers:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def measure(golds: Sequence[str] = (), groups: int = 64, count: int = 300) -> dict[str, dict[str, float]]:
    """Rates and their ratio for each batch; both sides are warm."""
    logging.disable(logging.CRITICAL)
    golds = golds or [str(number) for number in range(3, 900, 7)] + ["\\frac{1}{2}", "3\\sqrt{13}", "(1,2)", "x^2+1"]
    draw = random.Random(0)
    batches = {"rollout": rollout(golds, draw, groups), "fresh": fresh(draw, count), "wrong": wrong(draw, count)}
    figures: dict[str, dict[str, float]] = {}
    warm = fresh(random.Random(1), 20)
    with Grader(GraderOptions(workers=1, recycle=10**6)) as grader:
        grader.grade(warm)
        math_verify(warm)
        workers = grader.worker_pids()
        for name, pairs in batches.items():
            before = cpu_seconds(workers)
            verdicts = [verdict.correct for verdict in grader.grade(pairs)]
            between = cpu_seconds(workers)
            others = math_verify(pairs)
            ours, theirs = len(pairs) / (between - before), len(pairs) / (cpu_seconds(workers) - between)
            same = sum(a == b for a, b in zip(verdicts, others, strict=True))
            figures[name] = {"pairs": len(pairs), "tepo_per_core_second": round(ours, 1), "math_verify_per_core_second": round(theirs, 1), "ratio": round(ours / theirs, 2), "verdicts_equal": same}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with math500.jsonl, whose golds the rollout then uses")
    options = parser.parse_args()
    golds = [json.loads(line)["answer"] for line in (options.data / "math500.jsonl").read_text(encoding="utf-8").split("\n") if line] if options.data else []
    for name, row in measure(golds).items():
        rates = f"tepo {row['tepo_per_core_second']:8.0f}/s, math-verify {row['math_verify_per_core_second']:8.0f}/s, ratio {row['ratio']:6.2f}"
        print(f"{name:8} {row['pairs']:5} pairs: {rates}; {row['verdicts_equal']} verdicts equal")


if __name__ == "__main__":
    main()
