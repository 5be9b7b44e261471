import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tepo.problems.grader import Grader, GraderOptions, given_up
from tests.unit.grader.hostile_answers import LONG, POLYNOMIALS

pytestmark = pytest.mark.disaster

TOWER = r"\boxed{9^{9^{9^9}}}"
BARS = "\\boxed{" + "|x" * 400 + "}"  # half a second of reading, more than the tests below allow
ENDLESS = r"\boxed{\sum_{k=1}^{\infty} \frac{1}{k^5+k+1}}"
WARM = ("x+1", r"\boxed{1+x}")
SUMS = (  # omni_math-1075: beside anything but its own text, sympy took 2 s to fill its stack with it
    r"\sum_{m=1}^n 5^{\omega(m)} \le \sum_{k=1}^n \left\lfloor \frac{n}{k} \right\rfloor \tau(k)^2 "
    r"\le \sum_{m=1}^n 5^{\Omega(m)}",
    r"\sum_{m=1}^n {5}^{\omega(m)} \le \sum_{k=1}^n \left\lfloor \frac{n}{k} \right\rfloor \tau(k)^2 "
    r"\le \sum_{m=1}^n {5}^{\Omega(m)}",
)


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[None]:
    """Call `work` again and again in a thread."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.is_set():
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def signalled(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        time.sleep(0.001)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process's main thread; Linux counts it in nanoseconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def test_a_worker_that_gets_a_tenth_of_a_core_gives_the_same_verdict() -> None:
    """About 0.2 s of CPU time where a first try has 1 s, spread over more than 1 s, also where it takes 0.05 s."""
    pair = ("F=ma", r"\boxed{a=\frac{F}{m}}")
    with Grader(GraderOptions(timeout=2.0, workers=1)) as grader:
        grader.grade([WARM])
        (pid,) = grader.worker_pids()

        def slow() -> None:
            """Stand still, then run until 5 ms of CPU time are used, however busy the machine is."""
            signalled(pid, signal.SIGSTOP)
            time.sleep(0.12)
            enough, latest = cpu_seconds(pid) + 0.005, time.monotonic() + 0.1
            signalled(pid, signal.SIGCONT)
            while cpu_seconds(pid) < enough and time.monotonic() < latest:
                time.sleep(0.001)

        started = time.monotonic()
        with beside(slow):
            verdict = grader.grade([pair])[0]
        assert time.monotonic() - started > grader.options.timeout / 2  # or the test shows nothing
        assert (verdict.correct, verdict.reason) == (True, "symbolic")
        assert verdict.seconds < grader.options.timeout / 2
        assert grader.worker_pids() == [pid]


def test_cpu_time_ends_an_answer_after_a_second_try_in_another_worker() -> None:
    with Grader(GraderOptions(timeout=0.2, workers=1)) as grader:
        grader.grade([WARM])
        before = grader.worker_pids()
        verdict = grader.grade([("7", BARS)])[0]
        assert (verdict.correct, verdict.reason) == (False, "timeout")
        assert verdict.seconds > 0.25  # 0.1 s at first, 0.2 s alone, in ticks of 0.01 s; on a busy machine more
        assert not set(before) & set(grader.worker_pids())
        assert given_up([verdict.reason, "different", "crash"]) == 1


def test_a_machine_that_stands_still_is_no_property_of_the_answer() -> None:
    """Both tries stall: wrong, with a reason of its own, and judged anew when it comes again."""
    with Grader(GraderOptions(timeout=0.2, workers=1)) as grader:
        grader.grade([WARM])
        os.kill(grader.worker_pids()[0], signal.SIGSTOP)

        def stop_the_second() -> None:
            for worker in list(grader._pool._workers):
                if worker.ready:
                    signalled(worker.judge, signal.SIGSTOP)
            time.sleep(0.001)

        with beside(stop_the_second):
            assert grader.grade([("7", BARS)])[0].reason == "stalled"
        assert grader.grade([("7", BARS)])[0].reason == "timeout"


def test_hostile_answers_are_ended_by_the_counts_not_by_the_clock() -> None:
    """Bars that nest, towers of powers, chains of factorials, long integers, polynomials of high degree: no limit in
    seconds is near. On every try these took all of the CPU time that they were given, the last of it alone."""
    texts = [r"(((9!)!)!)!", r"e^{e^{e^{e^{e}}}}", *LONG]
    answers = [TOWER, BARS, ENDLESS, *(f"\\boxed{{{text}}}" for text in texts)]
    with Grader(GraderOptions(timeout=60, workers=2)) as grader:
        pairs = [("17", answer) for answer in answers]
        pairs += [("x^2=1", f"\\boxed{{{POLYNOMIALS[0]}}}"), ("x>1", f"\\boxed{{{POLYNOMIALS[1]}}}")]
        verdicts = grader.grade([*pairs, ("(1,2)", r"\boxed{\prod_{p=2}^{\infty} \frac{1}{1-p^{-2}}}")])
    assert {(verdict.correct, verdict.reason) for verdict in verdicts} == {(False, "too much work")}
    assert max(verdict.seconds for verdict in verdicts) < 20


def test_what_went_before_changes_neither_count_nor_verdict() -> None:
    """Reading costs the same ticks in a worker that has read the text, its like or nothing; what sympy remembers is
    forgotten before it could let an answer through that a new process gives up."""
    code = """
import json, sys
from tepo.problems.grader.worker import _load
from tepo.problems.grader.symbolic.allowance import REMEMBERED, allowance, count
decider = _load({"relative": 0, "absolute": 0})
texts = json.loads(sys.argv[1])
def cost(text):
    with allowance(first=False):
        before = count.reading
        decider.grade("17", text)
    return before - count.reading
counts = [cost(text) for text in texts]
kept = []
for n in range(60):
    with allowance(first=False):
        kept.append(count.kept)
        decider.grade("x", f"(x+{n})^9 - \\\\sin({n}x)")
print(json.dumps([counts, max(kept) <= REMEMBERED and min(kept[5:]) < max(kept)]))
"""
    texts = [r"\frac{x+\ln{y}}{2}", r"|x|+|y|x||", r"\int_0^1 \sin(x y) dx", r"\frac{x+\ln{y}}{3}"]

    def counted(order: list[str]) -> list[int]:
        run = subprocess.run(
            [sys.executable, "-c", code, json.dumps(order)], capture_output=True, text=True, check=True
        )
        counts, forgotten = json.loads(run.stdout)
        assert forgotten
        return counts

    forwards, backwards = counted([*texts, *texts]), counted(texts[::-1])
    alike = pytest.approx(forwards[:4], rel=1e-3)  # the parser goes through sets, in an order of their addresses
    assert forwards[4:] == alike
    assert backwards[::-1] == alike
    assert min(forwards) > 500


def test_sums_in_inequalities_are_not_solved() -> None:
    """Equal ones are seen to be equal, others refused, without the second that sympy needed to fill its stack."""
    with Grader(GraderOptions(workers=1)) as grader:
        verdicts = grader.grade(
            [(SUMS[0], f"\\boxed{{{answer}}}") for answer in (SUMS[1], "1700", SUMS[0].replace("5^", "6^"))]
        )
    assert [verdict.correct for verdict in verdicts] == [True, False, False]
    assert not given_up(verdict.reason for verdict in verdicts)
