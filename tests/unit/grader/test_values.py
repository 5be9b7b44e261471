from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from tepo.problems.grader import Grader, GraderOptions
from tepo.problems.grader.numbers import sample

LETTERS = ("a", "b", "c", "d", "m", "x_1", "x_2", "x_3", r"\alpha", r"\beta", "C", "y")
LONG = "1" * 1500


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
