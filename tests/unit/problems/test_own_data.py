r"""Rows of other people's data sets, in their forms: which problems they become, and what is said of the rest."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.problems.data_reader import ReadData, read_data
from tepo.problems.own_data.golds import final_answer
from tepo.problems.training_sets import load_training_problems
from tepo.training.preflight import check_golds
from tepo_cli.commands.problems import verify

PICTURE = "with a picture or a sound, which is not read"
UNMARKED = "whose solution marks no final answer"
PIXEL = base64.b64encode(b"\x89PNG").decode()


def _user(text: Any, *others: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in (("user", text), *others)]


def _read(folder: Path, rows: list[dict[str, Any]], fields: dict[str, str] | None = None) -> ReadData:
    (folder / "own.json").write_text(json.dumps(rows))
    return read_data(str(folder / "own.json"), fields)


def _golds(read: ReadData) -> list[tuple[str, str]]:
    return [(problem.prompt, problem.answer) for problem in read.problems]


# a solution, and its gold, or the reason why it has none
SOLUTIONS = {
    "a heading alone": ("We add.\n#### Conclusion\nSo it is 5.", ValueError(UNMARKED)),
    "a box behind a mark": ("#### \\boxed{5}", "5"),
    "mark and box agree": ("It is \\boxed{1{,}400}.\n#### 1,400", "1{,}400"),
    "mark and box differ": (
        "\\boxed{5}\n#### 7",
        ValueError("whose solution marks two answers, in \\boxed{} and after ####"),
    ),
    "a pair of long numbers": ("#### (1,200)", "(1,200)"),
    "thousands": ("#### $1,234,567.50", "$1234567.50"),
    "a list of boxes": ("$x = \\boxed{1}$ or $x = \\boxed{2}$", "1, 2"),
    "an open box": ("So \\boxed{5", ValueError("with an unclosed box")),
    "reasoning before the answer": ("<think>Maybe \\boxed{3}?</think>It is \\boxed{4}.", "4"),
    "reasoning that has no end": ("<think>Maybe \\boxed{3}?", ValueError("without an answer after its reasoning")),
    "tags": ("<think>3?</think><answer>4</answer>", "4"),
    "a worked solution": ("We add 2 and 2 and get 4 because 2+2=4.", ValueError(UNMARKED)),
    "a sentence that the grader reads": ("The answer is 5", "The answer is 5"),
}


@pytest.mark.parametrize("name", SOLUTIONS)
def test_the_gold_of_a_solution(name: str, tmp_path: Path) -> None:
    solution, gold = SOLUTIONS[name]
    rows = [{"question": "1?", "answer": "1"}, {"question": "2?", "answer": solution}]
    read = _read(tmp_path, rows)
    if isinstance(gold, ValueError):
        assert (len(read.problems), read.dropped) == (1, {str(gold): 1})
    else:
        assert (_golds(read)[1], read.dropped, read.changed) == (("2?", gold), {}, gold != solution)


CHOICES = "Which is even?\n\nA. 1\nB. 4\nC. 3"
# rows, and the problems with golds, or the reasons why there are none
ROWS: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str]] | str]] = {
    "Alpaca": (
        [
            {"instruction": "Solve for x.", "input": "x + 1 = 2", "output": "1"},
            {"instruction": "1 + 1?", "input": "", "output": "2"},
        ],
        [("Solve for x.\n\nx + 1 = 2", "1"), ("1 + 1?", "2")],
    ),
    "TRL": ([{"prompt": _user("1?"), "completion": [{"role": "assistant", "content": "1"}]}], [("1?", "1")]),
    "printed by Python": ([{"prompt": str(_user("1?")), "reward_model": "{'ground_truth': '1'}"}], [("1?", "1")]),
    "an unknown role": (
        [{"messages": _user("1?", ("narrator", "Then"), ("assistant", "1"))}],
        "with a message by 'narrator', not by a user, an assistant, a system or a tool",
    ),
    "several answers": ([{"question": "1?", "answer": ["1", "2"]}], "with several answers"),
    "an answer in a list": ([{"question": "1?", "answer": '["1"]'}], [("1?", "1")]),
    "an answer of parts": (
        [{"question": "1?", "answer": {"value": "1", "aliases": []}}],
        "whose answer has keys and values: data.fields.answer=answer.KEY with one of value, aliases",
    ),
    "MMLU": (
        [
            {"question": "Which is even?", "subject": "maths", "choices": ["1", "4", "3"], "answer": 1},
            {"question": "Which is odd?", "subject": "maths", "choices": ["5", "4"], "answer": 0},
        ],
        [(CHOICES, "B"), ("Which is odd?\n\nA. 5\nB. 4", "A")],
    ),
    "ARC": (
        [
            {
                "question": "Which is even?",
                "choices": {"text": ["1", "4", "3"], "label": list("ABC")},
                "answerKey": "B",
            },
            {"question": "Which is odd?", "choices": {"text": ["5", "4"], "label": ["1", "2"]}, "answerKey": "1"},
        ],
        [(CHOICES, "B"), ("Which is odd?\n\nA. 5\nB. 4", "A")],
    ),
    "columns": (
        [{"question": "Which is even?", "A": "1", "B": "4", "C": "3", "D": None, "answer": "(B)"}],
        [(CHOICES, "B")],
    ),
    "MathQA": ([{"Problem": "Which is even?", "options": "a ) 1 , b ) 4 , c ) 3", "correct": "b"}], [(CHOICES, "B")]),
    "MedQA": (
        [{"question": "Which is even?", "options": {"A": "1", "B": "4", "C": "3"}, "answer": "4", "answer_idx": "B"}],
        [(CHOICES, "B")],
    ),
    "letter and text": (
        [{"question": "Which is even?", "choices": ["1", "4", "3"], "answer": "B. 4"}],
        [(CHOICES, "B")],
    ),
    "no choices in a row": (
        [{"question": "1 + 3?", "choices": [], "answer": "4"}, {"question": "2?", "choices": None, "answer": "2"}],
        [("1 + 3?", "4"), ("2?", "2")],
    ),
    "none of the choices": (
        [{"question": "Which is even?", "choices": ["one", "four"], "answer": "six"}],
        "whose answer is none of its choices",
    ),
    "a column of images": (
        [{"question": "How many?", "answer": "4", "images": [{"bytes": PIXEL, "path": None}]}],
        PICTURE,
    ),
    "no image in a row": (
        [{"question": "How many?", "answer": "4", "images": [], "image": "None"}],
        [("How many?", "4")],
    ),
    "Markdown": ([{"question": "How many? ![](https://example.org/a.png)", "answer": "4"}], PICTURE),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_a_form(name: str, tmp_path: Path) -> None:
    rows, wanted = ROWS[name]
    if isinstance(wanted, str):
        with pytest.raises(UserError, match=re.escape(f"no problem in it: 1 {wanted}")):
            _read(tmp_path, rows)
        return
    assert _golds(_read(tmp_path, rows)) == wanted


def test_numbers_of_choices_that_may_count_from_0_or_from_1_are_refused(tmp_path: Path) -> None:
    rows = [{"question": "Which?", "choices": ["one", "four", "six"], "answer": answer} for answer in (1, 2)]
    with pytest.raises(UserError, match=r"own-0: the answer '.' can be . \(its number, counted from .\), or"):
        _read(tmp_path, rows)
    for other, letters_of in ((0, "BCA"), (3, "ABC")):
        read = _read(tmp_path, [*rows, rows[0] | {"answer": other}])
        assert "".join(problem.answer for problem in read.problems) == letters_of


def test_a_column_that_is_named_is_taken_alone(tmp_path: Path) -> None:
    rows = [{"instruction": "1 + 1?", "input": "Be brief.", "output": "2"}]
    read = _read(tmp_path, rows, {"problem": "instruction"})
    assert _golds(read) == [("1 + 1?", "2")]
    assert ("input", "not used", "") in read.columns


def test_what_verify_says_of_a_row_is_what_training_does_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"context": "Tom has 3 pens.", "question": "How many?", "options": ["3", "4"], "answer": "3"},
        {"context": "", "question": "2000?", "options": None, "answer": "So.\n#### 2,000"},
        {"context": "", "question": "Why?", "options": None, "answer": "We guess because of it."},
    ]
    name, read = str(tmp_path / "own.json"), _read(tmp_path, rows)
    verify([name])
    assert (
        f"dropped 1 row: 1 {UNMARKED}\n  golds that are only a part of their cell: 2 of 2\n" in capsys.readouterr().out
    )
    assert tuple(load_training_problems(name)) == read.problems
    assert f"dropped 1 row: 1 {UNMARKED}" in check_golds(compose([f"data={name}"]))


def test_verify_ends_with_1_where_a_gold_is_a_guess(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps({"question": "1?", "answer": "<think>3?</think>4"}))
    with pytest.raises(UserError, match="golds to mend in") as wrong:
        verify([str(path)])
    assert wrong.value.exit_code == 1
    assert "1 gold guessed: own-0 (" in capsys.readouterr().out


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**6), min_size=2, max_size=4))
def test_only_commas_of_thousands_are_left_out(number: int, numbers: list[int]) -> None:
    assert final_answer(f"So.\n#### {number:,}").text == str(number)
    listed = f"({','.join(map(str, numbers))})"
    assert final_answer(f"So.\n#### {listed}").text == listed


@given(st.text(max_size=60), st.text(max_size=60))
def test_nothing_in_reasoning_becomes_a_gold(thought: str, rest: str) -> None:
    """Of any text: a gold, or a reason why there is none, and the same without the reasoning."""

    def gold(text: str) -> str:
        try:
            return final_answer(text).text
        except ValueError as error:
            return f"no gold {str(error).removesuffix(' after its reasoning')}"

    assert gold(f"<think>{thought}\\boxed{{7}}</think>{rest}") == gold(rest)
