"""Answers graded per second and core: this grader beside plain math-verify, on the same pairs.

"rollout": what a training step grades: golds with several responses each, many of them the gold itself or a plain
number. "fresh": pairs that need sympy, none seen before. "wrong": pairs that need sympy and differ. Workers are started
and both sides are warm before the clock runs; each turn takes a part of a batch, seconds are of CPU time (parent and
worker together).
"""

import logging
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from perf.ratios import BenchmarkRow, in_turn
from tepo.problems.grader import Grader, GraderOptions

Pairs = list[tuple[str, str]]
GOLDS = [*(str(number) for number in range(3, 900, 7)), "\\frac{1}{2}", "3\\sqrt{13}", "(1,2)", "x^2+1"]
TARGETS, TURNS = {"rollout": 5.0, "fresh": 1.0, "wrong": 1.0}, 10


def measure(turns: int, short: bool) -> list[BenchmarkRow]:
    """A row for each batch; the short form has fewer pairs."""
    logging.disable(logging.CRITICAL)
    draw, count = random.Random(0), 60 if short else 300
    batches = {"rollout": rollout(draw, 32 if short else 64), "fresh": fresh(draw, count), "wrong": wrong(draw, count)}
    warm, rows = fresh(random.Random(1), 20), []
    with Grader(GraderOptions(workers=1, recycle=10**6)) as grader:
        grader.grade(warm)
        math_verify(warm, {})
        for name, pairs in batches.items():
            found = in_turn(sides(grader, pairs), TURNS, warm=0)
            ours, theirs = (len(pairs) / sum(seconds) for seconds in found.values())
            title, kind = f"grader / math-verify, {name}", (True, name == "fresh")
            rows.append(BenchmarkRow(title, "answers/core s", ours, theirs, ours / theirs, TARGETS[name], *kind))
    return rows


def sides(grader: Grader, pairs: Pairs) -> dict[str, Callable[[int], float]]:
    """CPU seconds of both graders for the part of the pairs that is a turn's."""
    workers, size, golds = grader.worker_pids(), -(-len(pairs) // TURNS), {}

    def timed(grade: Callable[[Pairs], object]) -> Callable[[int], float]:
        def run(turn: int) -> float:
            before = cpu_seconds(workers)
            grade(pairs[turn * size : (turn + 1) * size])
            return cpu_seconds(workers) - before

        return run

    return {"tepo": timed(grader.grade), "math-verify": timed(lambda part: math_verify(part, golds))}


def rollout(draw: random.Random, groups: int) -> Pairs:
    """Per gold 16 responses of about 1,500 characters: half right as the gold is written, a quarter one wrong number,
    the rest spread over a few other spellings and mistakes, repeated as samples of one policy repeat each other."""
    prose = "We compute step by step and check each case of the problem again. " * 22
    pairs = []
    for gold in draw.choices(GOLDS, k=groups):
        others = [str(draw.randint(2, 200)), f"{gold}+1", f"x = {gold}"]
        others.append(f"\\frac{{{draw.randint(1, 9)}}}{{{draw.randint(2, 9)}}}")
        for _ in range(16):
            roll = draw.random()
            answer = gold if roll < 0.5 else others[0] if roll < 0.75 else draw.choice(others)
            pairs.append((gold, f"{prose}So the answer is $\\boxed{{{answer}}}$."))
    return pairs


def fresh(draw: random.Random, count: int) -> Pairs:
    """Equal pairs in another spelling, all different from each other."""
    made = []
    for _ in range(count):
        a, b, c = (draw.randint(2, 999) for _ in range(3))
        pairs = [
            (f"\\frac{{{a}+\\sqrt{{{b}}}}}{{{c}}}", f"\\frac{{{a}}}{{{c}}}+\\frac{{\\sqrt{{{b}}}}}{{{c}}}"),
            (f"(x+{a})(x-{b})", f"x^2+{a - b}x-{a * b}".replace("+-", "-")),
            (f"{a}\\pi-{b}\\sqrt{{{c}}}", f"-{b}\\sqrt{{{c}}}+{a}\\pi"),
            (f"{a}\\ln {b}", f"\\ln ({b}^{{{a}}})"),
        ]
        made.append(draw.choice(pairs))
    return [(gold, f"\\boxed{{{answer}}}") for gold, answer in made]


def wrong(draw: random.Random, count: int) -> Pairs:
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
    """CPU time of this process and of the given worker processes: what one core would need, however busy the machine
    is."""
    ticks = 0
    for pid in workers:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")
