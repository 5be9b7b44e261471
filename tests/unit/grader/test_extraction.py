import pytest

from tepo.problems.grader.extraction import NoAnswer, extract_answer

ALL = ("phrase", "formula", "bare")


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"so \boxed{5}", "5"),
        (r"\boxed{\frac{1}{2}} and \boxed{\frac{1}{3}} are not separated by text", r"\frac{1}{2}, \frac{1}{3}"),
        (r"first \boxed{4}, then after more thought \boxed{5}", "5"),
        (r"\boxed{4} \boxed{5}", "5"),
        (r"$\boxed{1}$, $\boxed{2}$ and $\boxed{3}$", "1, 2, 3"),
        (r"\boxed {5}", "5"),
        (r"\fbox{5}", "5"),
        (r"\boxed 5", "5"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{5} \boxed{", NoAnswer("unclosed box")),
        (r"\boxed{5", NoAnswer("unclosed box")),
        (r"\boxed{5} and \boxed{}", NoAnswer("empty box")),
        (r"\boxed{ . }", NoAnswer("empty box")),
        ("5", NoAnswer("no answer")),
        ("", NoAnswer("no answer")),
        (r"\boxed", NoAnswer("unclosed box")),
    ],
)
def test_the_last_complete_box_or_a_reason(response: str, answer: str | NoAnswer) -> None:
    if isinstance(answer, str):
        assert extract_answer(response) == answer
        return
    with pytest.raises(NoAnswer, match=str(answer)):
        extract_answer(response)


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("The final answer is $5$. I hope it is correct.", "$5$."),
        ("1/2", "1/2"),
        ("Therefore we see that $x = 3$ solves it", "$x = 3$"),
        ("Answer: (1, 2)", "(1, 2)"),
    ],
)
def test_fallbacks_only_where_asked_for(response: str, answer: str) -> None:
    assert extract_answer(response, ALL) == answer
    with pytest.raises(NoAnswer):
        extract_answer(response)


def test_a_fallback_never_overrides_a_broken_box() -> None:
    with pytest.raises(NoAnswer, match="unclosed"):
        extract_answer(r"the answer is 5, \boxed{6", ALL)


def test_thousands_of_boxes_and_megabytes_are_quick() -> None:
    assert extract_answer(r"\boxed{1} " * 20_000 + r"\boxed{2}") == "2"
    assert extract_answer("x" * 10_000_000 + r"\boxed{3}") == "3"
    with pytest.raises(NoAnswer):
        extract_answer(r"\boxed{" * 100_000)
