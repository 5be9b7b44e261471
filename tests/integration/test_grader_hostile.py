# ruff: noqa: E501
"""Answers made to hang, crash or fool the grader, ordinary answers beside them, and random ones from hypothesis."""

import contextlib
import re
import resource
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tepo.problems.grader import Grader, GraderOptions
from tepo.problems.grader.extraction import NoAnswer, extract_answer
from tepo.problems.grader.options import FALLBACKS
from tests.support.processes import read
from tests.unit.grader.hostile_answers import GOLDS, HOSTILE, beside_golds

pytestmark = pytest.mark.disaster
LIMIT = 1.0
MEMORY_MB = 700


def test_hostile_answers_get_a_verdict_and_a_thousand_ordinary_ones_are_unharmed() -> None:
    """Within twice the limit of CPU time: half of it at first, all of it alone."""
    assert len(HOSTILE) >= 170
    ordinary = [(str(index), f"so \\boxed{{{index + index % 2}}}", index % 2 == 0) for index in range(900)]
    ordinary += [(f"x^2+{index}", f"\\boxed{{{index + index % 2}+x\\cdot x}}", index % 2 == 0) for index in range(100)]
    hostile = beside_golds()
    step = len(ordinary) // len(hostile) + 1
    pairs: list[tuple[str, str]] = []
    for index, pair in enumerate(hostile):
        pairs += [pair, *((gold, response) for gold, response, _ in ordinary[index * step : (index + 1) * step])]
    with Grader(GraderOptions(timeout=LIMIT, workers=2, memory_mb=MEMORY_MB)) as grader:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        verdicts = dict(zip(pairs, grader.grade(pairs), strict=True))
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 400
        peaks = [re.search(r"VmHWM:\s+(\d+)", read(pid, "status")) for pid in grader.worker_pids()]
        assert max(int(peak[1]) / 1024 for peak in peaks if peak) < MEMORY_MB  # of the workers that live
    assert [pair for pair, verdict in verdicts.items() if verdict.seconds > 2 * LIMIT] == []
    assert [pair for pair in hostile if verdicts[pair].correct] == []
    assert [one for one in ordinary if verdicts[one[:2]].correct != one[2]] == []


def test_extraction_and_the_cheap_comparison_are_quick_on_hostile_text() -> None:
    grader = Grader()

    def judged(response: str) -> None:
        with contextlib.suppress(NoAnswer):
            answer = extract_answer(response, FALLBACKS)
            for gold in GOLDS:
                found = grader._cheap(gold, answer)
                assert found is None or found[1] != "unreadable", response[:80]

    for response in HOSTILE:  # in the caller's process, with no clock over it
        started = time.process_time()
        judged(response)
        assert time.process_time() - started < 2.0, response[:80]


_SIGNS = r"0123456789xyzabi+-*/^_=<>(){}[]|,.;:!%$&~ \ '"
_COMMANDS = (
    r"\frac \sqrt \boxed \text \pm \cup \in \neq \leq \infty \pi \ldots \cdot \times \left( \right) \{ \} \\ \begin{pmatrix} \end{pmatrix} "
    r"\overline \binom \log \sin ^\circ \% \$ \mathrm and or cm √ ² ½ ∞ °"
)
LATEX = st.lists(st.sampled_from([*_SIGNS, *_COMMANDS.split()]), max_size=40).map("".join)
ANY = st.text(alphabet=st.characters(blacklist_categories=()), max_size=120)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors])
@given(gold=LATEX | ANY, answer=LATEX | ANY)
def test_any_text_gets_a_verdict(gold: str, answer: str, fuzzed: Grader) -> None:
    first, second = fuzzed.grade([(gold, f"\\boxed{{{answer}}}"), (gold, answer)])
    assert isinstance(first.correct, bool)
    assert isinstance(second.correct, bool)
    assert max(first.seconds, second.seconds) <= 2 * LIMIT
    assert {first.reason, second.reason}.isdisjoint({"crash", "error"})


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Grader]:
    with Grader(GraderOptions(timeout=LIMIT, workers=1, memory_mb=MEMORY_MB)) as grader:
        yield grader
