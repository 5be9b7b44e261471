import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from tepo.common.errors import UserError
from tepo.problems.grader import Grader, GraderOptions
from tepo.problems.grader.numbers import sample
from tests.support.processes import runs


def test_exact_answers_start_no_worker_and_import_no_sympy() -> None:
    code = (
        "import sys, time\nfrom tepo.problems.grader import Grader\n"
        "grader = Grader()\n"
        "pairs = [(str(i % 97), f'so it is \\\\boxed{{{i % 89}}}') for i in range(512)]\n"
        "right = sum(verdict.correct for verdict in grader.grade(pairs))\n"
        "more = grader.grade([('\\\\frac{1}{2}', '\\\\boxed{0.5}'), ('(1,2)', '\\\\boxed{(2,1)}'), "
        "('52_8', '\\\\boxed{52_9}')])\n"
        "assert [verdict.correct for verdict in more] == [True, False, False] "
        "and right == sum(i % 97 == i % 89 for i in range(512))\n"
        "assert not grader._pool._workers\n"
        "print([name for name in ('sympy', 'math_verify', 'torch', 'numpy', 'antlr4') if name in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_a_killed_worker_is_a_crash_and_the_pool_goes_on() -> None:
    with Grader(GraderOptions(workers=1, timeout=20)) as grader:
        grader.grade([("x+1", r"\boxed{1+x}")])
        (pid,) = grader.worker_pids()
        os.kill(pid, signal.SIGSTOP)  # so that it is killed before it can answer
        timer = threading.Timer(0.7, os.kill, (pid, signal.SIGKILL))
        timer.start()
        assert grader.grade([(r"\ln x", r"\boxed{\ln 3}")])[0].reason == "crash"
        assert grader.grade([("y+1", r"\boxed{1+y}")])[0].correct


def test_memory_is_bounded() -> None:
    with Grader(GraderOptions(workers=1, timeout=30, memory_mb=300)) as grader:
        grader.grade([("x+1", r"\boxed{1+x}")])
        verdict = grader.grade([("1", r"\boxed{\frac{7^{7^{10}}}{3}-7^{7^{9}}\cdot 5^{5^{12}}}")])[0]
        assert not verdict.correct
        assert grader.grade([("z+1", r"\boxed{1+z}")])[0].correct


def test_close_leaves_no_process_and_the_grader_can_be_used_again() -> None:
    grader = Grader(GraderOptions(workers=1, timeout=20))
    grader.grade([("x+1", r"\boxed{1+x}")])
    processes = [grader._pool._workers[0].process.pid, *grader.worker_pids()]
    assert all(map(runs, processes))
    grader.close()
    deadline = time.monotonic() + 60
    while any(map(runs, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(runs, processes))
    assert grader.grade([("x+2", r"\boxed{2+x}")])[0].correct
    grader.close()


def test_workers_end_with_a_killed_parent() -> None:
    """At once, whatever they are at: one that judges is stopped here, and would see no pipe close."""
    code = (
        "import os, threading, time\nfrom tepo.problems.grader import Grader, GraderOptions\n"
        "grader = Grader(GraderOptions(workers=1, timeout=60))\n"
        "grader.grade([('x+1', '\\\\boxed{1+x}')])\n"
        "print(grader._pool._workers[0].process.pid, *grader.worker_pids(), flush=True)\n"
        "os.kill(grader.worker_pids()[0], 19)\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    worker, judge = map(int, done.stdout.split())
    deadline = time.monotonic() + 60
    while (runs(worker) or runs(judge)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not runs(worker)
    assert not runs(judge)


def test_the_fingerprint_names_what_decides() -> None:
    plain, tolerant = GraderOptions(), GraderOptions(relative_tolerance=0.01)
    assert plain.fingerprint() != tolerant.fingerprint()
    assert plain.fingerprint() == GraderOptions(workers=7).fingerprint()
    assert all(name in plain.fingerprint() for name in ("math-verify 0.9", "sympy 1.", "antlr4-python3-runtime 4.9.3"))


@pytest.mark.parametrize("options", [{"fallbacks": ("bear",)}, {"timeout": 0}])
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UserError):
        GraderOptions(**options)  # type: ignore[arg-type]


def test_answers_too_long_or_too_deep_are_never_parsed() -> None:
    with Grader() as grader:
        long, deep = "x+" * 3000, "(" * 300 + "x" + ")" * 300
        verdicts = grader.grade([("x", f"\\boxed{{{long}{number}}}") for number in range(50)])
        assert {verdict.reason for verdict in verdicts} == {"too long"}
        assert not grader._cache  # 5,000 of 60 kB each filled 331 MB
        assert grader.grade([("x", f"\\boxed{{{deep}}}")])[0].reason == "too deep"
        assert len(grader._cache) == 1
        assert not grader._pool._workers


def test_nothing_is_executed(tmp_path: os.PathLike[str]) -> None:
    target = os.path.join(tmp_path, "made")
    code = f"__import__('os').mkdir('{target}')"
    with Grader(GraderOptions(workers=1, timeout=10)) as grader:
        grader.grade([("5", f"\\boxed{{{code}}}"), (code, "\\boxed{5+x}")])
    assert not os.path.exists(target)


LETTERS = ("a", "b", "c", "d", "m", "x_1", "x_2", "x_3", r"\alpha", r"\beta", "C", "y")


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(GraderOptions(workers=1, timeout=20)) as grader:
        yield grader


def judged(grader: Grader, gold: str, answer: str) -> tuple[bool, str]:
    (verdict,) = grader.grade([(gold, f"\\boxed{{{answer}}}")])
    return verdict.correct, verdict.reason


def linear(coefficients: list[int], unknowns: list[str]) -> str:
    """3a-2b+0c as its terms, in LaTeX."""
    terms = [f"{count:+d}{name}" for count, name in zip(coefficients, unknowns, strict=True) if count]
    return "".join(terms).lstrip("+") or "0"


@st.composite
def forms(draw: st.DrawFn) -> tuple[list[str], list[int], list[int]]:
    """Three to six unknowns, and the coefficients of two linear forms that differ little (or not at all)."""
    unknowns = draw(st.lists(st.sampled_from(LETTERS), min_size=3, max_size=6, unique=True))
    size = len(unknowns)
    first = draw(st.lists(st.integers(1, 4), min_size=size, max_size=size))
    change = draw(st.lists(st.integers(-1, 1), min_size=size, max_size=size))
    return unknowns, first, [one + other for one, other in zip(first, change, strict=True)]


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(forms(), st.sampled_from([r"\ln({})", r"\frac{{{}}}{{2}}", r"\sin({})", "e^{{{}}}"]))
@example((["a", "b", "c", "d"], [1, 0, 0, 1], [0, 1, 1, 0]), r"\ln({})")
@example((["x_1", "x_2", "x_3", "x_4", "y"], [2, 1, 1, 1, 2], [3, 1, -1, 1, 3]), r"\sin({})")
def test_linear_forms_are_equal_where_their_coefficients_are(
    grader: Grader, drawn: tuple[list[str], list[int], list[int]], around: str
) -> None:
    unknowns, first, second = drawn
    gold = around.format(linear(first, unknowns))
    assert judged(grader, gold, around.format(linear(first[::-1], unknowns[::-1])))[0]
    assume(any(second))
    assert judged(grader, gold, around.format(linear(second, unknowns)))[0] == (first == second)


def test_no_linear_relation_holds_among_the_values_of_the_points() -> None:
    """Every form a+b-c, a-b+1/7 … with coefficients up to two, at every point: none vanishes."""
    small = [(a, b, c) for a in range(-2, 3) for b in range(-2, 3) for c in range(-2, 3) if (a, b, c) != (0, 0, 0)]
    for point in range(6):
        values = [int(sample(point, unknown).replace(".", "")) for unknown in range(6)]
        unit = 10**50
        for a, b, c in small:
            for i in range(6):
                for j in range(i):
                    total = 7 * (a * values[i] + b * values[j]) + c * unit
                    assert abs(total) > unit // 10**6


def test_what_cannot_be_told_apart_at_the_digits_allowed_is_given_up(grader: Grader) -> None:
    assert judged(grader, "2^{67000}", r"2^{67000}+\sqrt{2}") == (False, "too much work")
    assert judged(grader, "2^{67000}", r"3^{67000}+\sqrt{2}") == (False, "different")
