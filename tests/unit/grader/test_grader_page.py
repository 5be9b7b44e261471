import re
from pathlib import Path

from tepo.problems.grader import Grader

PAGE = Path(__file__).parents[3] / "docs" / "evaluation.md"
ROW = re.compile(r"^\| `(?P<gold>.+?)` \| (?P<right>`.+`) \| (?P<wrong>`.+`) \|$", re.MULTILINE)


def test_the_answers_of_the_page_are_judged_as_it_says() -> None:
    told = [
        (row["gold"], answer, side == "right")
        for row in ROW.finditer(PAGE.read_text(encoding="utf-8"))
        for side in ("right", "wrong")
        for answer in re.findall(r"`(.+?)`", row[side])
    ]
    assert len(told) >= 35
    with Grader() as grader:
        verdicts = grader.grade([(gold, f"\\boxed{{{answer}}}") for gold, answer, _ in told])
    assert [one for one, verdict in zip(told, verdicts, strict=True) if verdict.correct is not one[2]] == []
