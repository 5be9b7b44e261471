r"""Rows of other people's data sets, in their forms: which problems they become, and what is said of the rest."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.problems.data_reader import ReadData, read_data
from tepo.problems.findings import other_forms
from tepo.problems.grader import GraderOptions
from tepo.problems.own_data.choices import Choice, letters
from tepo.problems.own_data.golds import final_answer
from tepo.problems.problem import Problem
from tepo.problems.training_sets import load_training_problems, training_fingerprint
from tepo.training.preflight import check_golds
from tepo_cli.commands.problems import verify

PICTURE = "with a picture or a sound, which is not read"
UNMARKED = "whose solution marks no final answer"
PIXEL = base64.b64encode(b"\x89PNG").decode()
GSM = 'Tom has 3 pens and buys 4. {} Let\'s think step by step and output the final answer after "####".'


def _user(text: Any, *others: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in (("user", text), *others)]


def _read(folder: Path, rows: list[dict[str, Any]], fields: dict[str, str] | None = None) -> ReadData:
    (folder / "own.json").write_text(json.dumps(rows))
    return read_data(str(folder / "own.json"), fields)


def _golds(read: ReadData) -> list[tuple[str, str]]:
    return [(problem.prompt, problem.answer) for problem in read.problems]


# a solution, and its gold, or the reason why it has none
SOLUTIONS = {
    "a heading is no mark": ("We add.\n#### Conclusion\nSo it is \\boxed{5}.", "5"),
    "a heading alone": ("We add.\n#### Conclusion\nSo it is 5.", ValueError(UNMARKED)),
    "five signs": ("##### 5", ValueError(UNMARKED)),
    "a mark in the last line": ("2 + 3 = 5\n#### 5", "5"),
    "a box behind a mark": ("#### \\boxed{5}", "5"),
    "mark and box agree": ("It is \\boxed{1{,}400}.\n#### 1,400", "1{,}400"),
    "mark and box differ": (
        "\\boxed{5}\n#### 7",
        ValueError("whose solution marks two answers, in \\boxed{} and after ####"),
    ),
    "a decimal comma": ("#### 3,5", "3,5"),
    "thousands": ("#### $1,234,567.50", "$1234567.50"),
    "thousands in a cell": ("1,400", "1,400"),
    "several boxes": ("First \\boxed{1}, then \\boxed{2}.", "2"),
    "a list of boxes": ("$x = \\boxed{1}$ or $x = \\boxed{2}$", "1, 2"),
    "an open box": ("So \\boxed{5", ValueError("with an unclosed box")),
    "reasoning before the answer": ("<think>Maybe \\boxed{3}?</think>It is \\boxed{4}.", "4"),
    "reasoning that has no end": ("<think>Maybe \\boxed{3}?", ValueError("without an answer after its reasoning")),
    "reasoning of OpenThoughts": ("<|begin_of_thought|>\\boxed{3}<|end_of_thought|>\n\\boxed{4}", "4"),
    "reasoning and a bare answer": ("<think>3?</think>\n4", "4"),
    "tags": ("<think>3?</think><answer>4</answer>", "4"),
    "a worked solution": ("We add 2 and 2 and get 4 because 2+2=4.", ValueError(UNMARKED)),
    "a sentence": ("She has 5 apples left.", ValueError(UNMARKED)),
    "a sentence that the grader reads": ("The answer is 5", "The answer is 5"),
    "words": ("12 apples and 3 oranges", "12 apples and 3 oranges"),
    "formulas": (
        r"\begin{cases} 1 & \text{if } x=2 \\ 3 \end{cases}",
        r"\begin{cases} 1 & \text{if } x=2 \\ 3 \end{cases}",
    ),
}


@pytest.mark.parametrize("name", SOLUTIONS)
def test_the_gold_of_a_solution(name: str, tmp_path: Path) -> None:
    solution, gold = SOLUTIONS[name]
    rows = [{"question": "1?", "answer": "1"}, {"question": "2?", "answer": solution}]
    read = _read(tmp_path, rows)
    if isinstance(gold, ValueError):
        assert (len(read.problems), read.dropped) == (1, {str(gold): 1})
    else:
        assert (_golds(read)[1], read.dropped) == (("2?", gold), {})
        assert read.changed == (gold != solution)


CHOICES = "Which is even?\n\nA. 1\nB. 4\nC. 3"
FIRST = {"role": "assistant", "content": "Hi"}
SQUARE = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "How many?"}]}
SHARED = [{"from": "human", "value": "1?"}, {"from": "gpt", "value": "<think>2</think>\\boxed{1}"}]
BOXED = _user("1?", ("assistant", "\\boxed{1}"))
ONE = {  # rows of which each asks 1?, whose gold is 1
    "SVAMP": {"Body": "", "Question": "1?", "Answer": "1"},
    "OpenMathReasoning": {"problem": "1?", "expected_answer": "1"},
    "MATH": {"problem": "1?", "level": "Level 1", "solution": "It is $\\boxed{1}$."},
    "NuminaMath": {"source": "x", "problem": "1?", "solution": "\\boxed{1}", "messages": BOXED},
    "OpenR1": {"problem": "1?", "solution": "Long.\n\n\\boxed{1}", "answer": "1", "generations": ["<think>2</think>"]},
    "ShareGPT": {"conversations": SHARED},
    "TRL": {"prompt": _user("1?"), "completion": [{"role": "assistant", "content": "1"}]},
    "roles in capitals": {"messages": [{"role": "Developer", "content": "B"}, *_user("1?", ("ASSISTANT", "1"))]},
    "tools": {"messages": _user("1?", ("assistant", None), ("tool", "7"), ("assistant", "\\boxed{1}"))},
    "printed by Python": {"prompt": str(_user("1?")), "reward_model": "{'ground_truth': '1'}"},
    "an answer in a list": {"question": "1?", "answer": '["1"]'},
    "operands": {"question": "1?", "a": 3, "b": 4, "answer": 1},
    "no image in a row": {"question": "1?", "answer": "1", "images": [], "image": "None"},
    "no choices in a row": {"question": "1?", "choices": [], "answer": "1"},
    "none for choices": {"question": "1?", "choices": None, "answer": "1"},
}
EVEN = {  # what a row has beside the question which of three numbers is even
    "ARC": {"choices": {"text": ["1", "4", "3"], "label": list("ABC")}, "answerKey": "B"},
    "numbers as labels": {"choices": {"text": ["1", "4", "3"], "label": ["1", "2", "3"]}, "answerKey": "2"},
    "columns": {"A": "1", "B": "4", "C": "3", "D": None, "answer": "(B)"},
    "numbered columns": {"option1": "1", "option2": "4", "option3": "3", "answer": "2"},
    "AQuA": {"options": ["A)1", "B)4", "C)3"], "rationale": "…", "correct": "B"},
    "MathQA": {"options": "a ) 1 , b ) 4 , c ) 3", "correct": "b"},
    "MedQA": {"options": {"A": "1", "B": "4", "C": "3"}, "answer": "4", "answer_idx": "B"},
    "text": {"options": [{"id": 1, "text": "1"}, {"id": 2, "text": "4"}, {"id": 3, "text": "3"}], "answer": "4"},
    "letter and text": {"choices": ["1", "4", "3"], "answer": "B. 4"},
    "a choice in a solution": {"choices": ["1", "4", "3"], "answer": "We look.\n#### B"},
    "choices that the question lists": {"question": CHOICES, "choices": ["1", "4", "3"], "answer": "B"},
}
PICTURES: dict[str, dict[str, Any]] = {  # rows, or what they have beside question and answer
    "a column of images": {"images": [{"bytes": PIXEL, "path": None}]},
    "a path of an image": {"image_path": "a.png"},
    "a place for an image": {"question": "<image>\nHow many?"},
    "LaTeX": {"question": "How many? \\includegraphics{a.png}"},
    "Markdown": {"question": "How many? ![](https://example.org/a.png)"},
    "images as choices": {"choices": [{"bytes": PIXEL}, {"bytes": PIXEL}], "answer": "A"},
}
NARRATED = _user("1?", ("narrator", "Then"), ("assistant", "1"))
DROPPED: dict[str, dict[str, Any]] = {  # the reason, and a row
    "with a message by 'narrator', not by a user, an assistant, a system or a tool": {"messages": NARRATED},
    "with several questions": {"messages": _user("1?", ("assistant", "1"), ("user", "2?"))},
    "whose question follows an answer": {"messages": [FIRST, *_user("1?", ("assistant", "1"))]},
    "without an answer": {"messages": _user("1?")},
    "with several answers": {"question": "1?", "answer": ["1", "2"]},
    "whose answer has keys and values": {"question": "1?", "answer": {"value": "1", "aliases": []}},
    "whose answer is none of its choices": {"question": "1?", "choices": ["one", "four"], "answer": "six"},
    "whose choices are no list": {"question": "1?", "choices": "one or four", "answer": "A"},
    "with a single choice": {"question": "1?", "choices": "['1' '4']", "answer": "1"},  # as NumPy prints
    "whose problem has keys and values": {"question": {"stem": "Which?", "choices": []}, "answerKey": "A"},
}
READ = {name: (row, ("1?", "1")) for name, row in ONE.items()}
READ |= {name: ({"question": "Which is even?"} | row, (CHOICES, "B")) for name, row in EVEN.items()}
RAIN = {"question": "1?", "choices": ["It rains because 2+2=4.", "No."], "answer": "It rains because 2+2=4."}
READ |= {
    "Alpaca": ({"instruction": "Solve.", "input": "x + 1 = 2", "output": "1"}, ("Solve.\n\nx + 1 = 2", "1")),
    "Alpaca without an input": ({"instruction": "1?", "input": "", "output": "1"}, ("1?", "1")),
    "a list as the answer": ({"question": "1?", "answer": "[1, 2]"}, ("1?", "[1, 2]")),
    "a sentence as a choice": (RAIN, ("1?\n\nA. It rains because 2+2=4.\nB. No.", "A")),
}
LEFT_OUT = [({"question": "How many?", "answer": "4"} | row, PICTURE) for row in PICTURES.values()]
LEFT_OUT += [({"messages": [SQUARE, {"role": "assistant", "content": "4"}]}, PICTURE)]
LEFT_OUT += [(row, reason) for reason, row in DROPPED.items()]


@pytest.mark.parametrize("name", READ)
def test_a_row_of_a_form(name: str, tmp_path: Path) -> None:
    row, gold = READ[name]
    read = _read(tmp_path, [row])
    assert (_golds(read), read.dropped) == ([gold], {})


@pytest.mark.parametrize(("row", "reason"), LEFT_OUT)
def test_a_row_that_is_left_out(row: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(f"no problem in it: 1 {reason}")):
        _read(tmp_path, [row])


def test_bytes_in_parquet_are_a_picture(tmp_path: Path) -> None:
    rows = [{"question": "How many?", "answer": "4", "image": {"bytes": b"\x89PNG"}}, {"question": "1?", "answer": "1"}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "own.parquet")
    read = read_data(str(tmp_path / "own.parquet"))
    assert (_golds(read), read.dropped) == ([("1?", "1")], {PICTURE: 1})


@pytest.mark.parametrize("answers", [[1], [1, 2], ["2"]])
def test_numbers_of_choices_that_may_count_from_0_or_from_1_are_refused(answers: list[Any], tmp_path: Path) -> None:
    rows = [{"question": "Which?", "choices": ["one", "four", "six"], "answer": answer} for answer in answers]
    with pytest.raises(
        UserError, match=r"own-0: the answer '.' can be . \(its number, counted from .\), or"
    ) as refused:
        _read(tmp_path, rows)
    assert "write the letters" in refused.value.fix
    zero = _read(tmp_path, [*rows, rows[0] | {"answer": 0}])
    three = _read(tmp_path, [*rows, rows[0] | {"answer": 3}])
    assert [ord(one.answer) - ord(other.answer) for one, other in zip(zero.problems, three.problems, strict=True)][
        :-1
    ] == [1 for _ in answers]


def test_a_column_of_choices_can_be_named(tmp_path: Path) -> None:
    rows = [{"question": "Which is even?", "Auswahl": ["1", "4", "3"], "answer": "B"}]
    assert _golds(_read(tmp_path, rows, {"choices": "Auswahl"})) == [(CHOICES, "B")]
    assert _golds(_read(tmp_path, rows)) == [("Which is even?", "B")]


def test_a_column_that_is_named_is_taken_alone(tmp_path: Path) -> None:
    rows = [{"instruction": "1 + 1?", "input": "Be brief.", "output": "2"}]
    read = _read(tmp_path, rows, {"problem": "instruction"})
    assert _golds(read) == [("1 + 1?", "2")]
    assert ("input", "not used", "") in read.columns


def test_verify_reads_what_training_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"context": "Tom has 3 pens.", "question": "How many?", "options": ["3", "4"], "answer": "3", "url": "x"},
        {"context": "", "question": "2000?", "options": None, "answer": "So.\n#### 2,000", "url": "x"},
        {"context": "", "question": "Why?", "options": None, "answer": "We guess because of it.", "url": "x"},
    ]
    name = str(tmp_path / "own.json")
    read = _read(tmp_path, rows)
    verify([name])
    said = capsys.readouterr().out
    assert all(column in said for column in rows[0])
    assert f"dropped 1 row: 1 {UNMARKED}\n  golds that are only a part of their cell: 2 of 2\n" in said
    assert tuple(load_training_problems(name)) == read.problems
    assert f"dropped 1 row: 1 {UNMARKED}" in check_golds(compose([f"data={name}"]))
    before = training_fingerprint(name)
    _read(tmp_path, [rows[0] | {"context": "Tom has 4 pens."}, *rows[1:]])
    assert training_fingerprint(name) != before


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("<think>3?</think>4", "1 gold guessed: own-0 ("),
        ("<answer>4</answer>", "1 gold guessed: own-0 ("),
        ("\\boxed{1} and \\boxed{4}", "1 gold guessed: own-0 ("),
        ("We add 2 and 2 because 2+2=4.", "is a worked solution, not an answer"),
    ],
)
def test_verify_ends_with_1_where_a_gold_is_a_guess(
    answer: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.jsonl"  # with an id and our own words, a solution is taken as it is
    row = {"problem": "1?", "answer": answer} | ({"id": "a"} if "solution" in said else {})
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError, match="golds to mend in") as wrong:
        verify([str(path)])
    assert wrong.value.exit_code == 1
    assert said in capsys.readouterr().out


def test_verify_takes_the_settings_of_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, reward = tmp_path / "own.csv", tmp_path / "own.py"
    path.write_text("Frage,Lohn\n1 + 1?,unknown\n")
    reward.write_text("def reward(problem, response):\n    return 1.0\n")
    fields = ["data.fields.problem=Frage", "data.fields.answer=Lohn"]
    with pytest.raises(UserError, match="no column holds a problem"):
        verify([str(path)])
    assert "Frage" not in capsys.readouterr().out  # the command prints it
    with pytest.raises(UserError, match="golds to mend in"):
        verify([str(path), *fields])
    verify([f"data={path}", *fields, f"data.reward={reward}"])
    assert "golds are not tried: data.reward judges" in capsys.readouterr().out
    with pytest.raises(UserError, match="unknown field 'problm'"):
        verify([str(path), "data.fields.problm=Frage"])
    with pytest.raises(UserError, match="settings are for data of yours"):
        verify(["math500", "data.prompt=raw"])


@pytest.mark.parametrize(
    ("statement", "form"),
    [
        (GSM.format("How many?"), "####"),
        ("1 + 1? Put the answer between <answer> and </answer>.", "<answer>"),
        ("1 + 1? Put it into \\boxed{}.", ""),
        ("#### Task\n1 + 1?", ""),
    ],
)
def test_a_problem_that_asks_for_another_form_of_the_answer_is_said(
    statement: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _read(tmp_path, [{"question": statement, "answer": "2"}])
    name = str(tmp_path / "own.json")
    verify([name])
    wanted = f"1 problem asks for the answer in another form than \\boxed{{}}: own-0 ({form})"
    assert (wanted in capsys.readouterr().out) == bool(form)
    assert (wanted in check_golds(compose([f"data={name}"]))) == bool(form)
    assert other_forms([Problem("a", statement, "2")], GraderOptions(fallbacks=("phrase",))) == ""


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


@given(st.lists(st.text("abcdef", min_size=2), min_size=2, max_size=8, unique=True), st.data())
def test_letter_and_text_name_the_same_choice(texts: list[str], data: st.DataObject) -> None:
    choices = tuple(Choice(letter, "", text) for letter, text in zip("ABCDEFGH", texts, strict=False))
    chosen = data.draw(st.sampled_from(choices))
    for answer in chosen[::2]:
        assert letters([("a", answer, choices)], "")[0][0] == chosen.letter
