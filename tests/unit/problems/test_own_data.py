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
    "a heading below a box": ("So it is \\boxed{5}.\n#### Done", "5"),
    "a heading alone": ("We add.\n#### Conclusion\nSo it is 5.", ValueError(UNMARKED)),
    "five signs": ("##### 5", ValueError(UNMARKED)),
    "a mark in the last line": ("2 + 3 = 5\n#### 5", "5"),
    "a mark in one line": ("2 + 3 = 5 #### 5", "5"),
    "a box behind a mark": ("#### \\boxed{5}", "5"),
    "mark and box agree": ("It is \\boxed{1{,}400}.\n#### 1,400", "1{,}400"),
    "mark and box differ": (
        "\\boxed{5}\n#### 7",
        ValueError("whose solution marks two answers, in \\boxed{} and after ####"),
    ),
    "a pair": ("#### (1,2)", "(1,2)"),
    "a pair of long numbers": ("#### (1,200)", "(1,200)"),
    "a decimal comma": ("#### 3,5", "3,5"),
    "a list": ("#### 1, 2, 3", "1, 2, 3"),
    "thousands": ("#### $1,234,567.50", "$1234567.50"),
    "thousands in a cell": ("1,400", "1,400"),
    "several boxes": ("First \\boxed{1}, then \\boxed{2}.", "2"),
    "a list of boxes": ("$x = \\boxed{1}$ or $x = \\boxed{2}$", "1, 2"),
    "an open box": ("So \\boxed{5", ValueError("with an unclosed box")),
    "reasoning before the answer": ("<think>Maybe \\boxed{3}?</think>It is \\boxed{4}.", "4"),
    "reasoning that the prompt began": ("Maybe \\boxed{3}?</think>It is \\boxed{4}.", "4"),
    "reasoning that has no end": ("<think>Maybe \\boxed{3}?", ValueError("without an answer after its reasoning")),
    "reasoning of OpenThoughts": ("<|begin_of_thought|>\\boxed{3}<|end_of_thought|>\n\\boxed{4}", "4"),
    "reasoning and a bare answer": ("<think>3?</think>\n4", "4"),
    "tags": ("<think>3?</think><answer>4</answer>", "4"),
    "a worked solution": ("We add 2 and 2 and get 4 because 2+2=4.", ValueError(UNMARKED)),
    "a sentence": ("She has 5 apples left.", ValueError(UNMARKED)),
    "a German one": ("Wir addieren und erhalten 4, weil 2+2=4.", ValueError(UNMARKED)),
    "a sentence that the grader reads": ("The answer is 5", "The answer is 5"),
    "words": ("12 apples and 3 oranges", "12 apples and 3 oranges"),
    "a condition": ("all primes p such that p-1 is divisible by 4", "all primes p such that p-1 is divisible by 4"),
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
SQUARE = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "How many?"}]}
# rows, and the problems with golds, or the reasons why there are none
ROWS: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str]] | str]] = {
    "Alpaca": (
        [
            {"instruction": "Solve for x.", "input": "x + 1 = 2", "output": "1"},
            {"instruction": "1 + 1?", "input": "", "output": "2"},
        ],
        [("Solve for x.\n\nx + 1 = 2", "1"), ("1 + 1?", "2")],
    ),
    "SVAMP": (
        [{"Body": "Tom has 3 pens.", "Question": "How many?", "Answer": "3"}],
        [("Tom has 3 pens.\n\nHow many?", "3")],
    ),
    "OpenMathReasoning": ([{"problem": "1?", "expected_answer": "1"}], [("1?", "1")]),
    "a blank in a name": ([{"question ": "1?", " answer": "1"}], [("1?", "1")]),
    "MATH": ([{"problem": "1?", "level": "Level 1", "solution": "It is $\\boxed{1}$."}], [("1?", "1")]),
    "NuminaMath": (
        [
            {
                "source": "x",
                "problem": "1?",
                "solution": "\\boxed{1}",
                "messages": _user("1?", ("assistant", "\\boxed{1}")),
            }
        ],
        [("1?", "1")],
    ),
    "OpenR1": (
        [{"problem": "1?", "solution": "Long.\n\n\\boxed{1}", "answer": "1", "generations": ["<think>2</think>"]}],
        [("1?", "1")],
    ),
    "verl": (
        [{"data_source": "x", "prompt": _user("1?"), "reward_model": {"style": "rule", "ground_truth": "1"}}],
        [("1?", "1")],
    ),
    "ShareGPT": (
        [{"conversations": [{"from": "human", "value": "1?"}, {"from": "gpt", "value": "<think>2</think>\\boxed{1}"}]}],
        [("1?", "1")],
    ),
    "TRL": ([{"prompt": _user("1?"), "completion": [{"role": "assistant", "content": "1"}]}], [("1?", "1")]),
    "roles in capitals": (
        [{"messages": [{"role": "Developer", "content": "Be brief."}, *_user("1?", ("ASSISTANT", "1"))]}],
        [("1?", "1")],
    ),
    "tools": (
        [{"messages": _user("1?", ("assistant", None), ("tool", "7"), ("assistant", "\\boxed{1}"))}],
        [("1?", "1")],
    ),
    "printed by Python": ([{"prompt": str(_user("1?")), "reward_model": "{'ground_truth': '1'}"}], [("1?", "1")]),
    "an unknown role": (
        [{"messages": _user("1?", ("narrator", "Then"), ("assistant", "1"))}],
        "with a message by 'narrator', not by a user, an assistant, a system or a tool",
    ),
    "several questions": ([{"messages": _user("1?", ("assistant", "1"), ("user", "2?"))}], "with several questions"),
    "an answer first": (
        [{"messages": [{"role": "assistant", "content": "Hi"}, *_user("1?", ("assistant", "1"))]}],
        "whose question follows an answer",
    ),
    "no answer": ([{"messages": _user("1?")}], "without an answer"),
    "several answers": ([{"question": "1?", "answer": ["1", "2"]}], "with several answers"),
    "an answer in a list": ([{"question": "1?", "answer": '["1"]'}], [("1?", "1")]),
    "a list as the answer": ([{"question": "1?", "answer": "[1, 2]"}], [("1?", "[1, 2]")]),
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
    "numbered columns": (
        [{"question": "Which is even?", "option1": "1", "option2": "4", "option3": "3", "answer": "2"}],
        [(CHOICES, "B")],
    ),
    "AQuA": (
        [{"question": "Which is even?", "options": ["A)1", "B)4", "C)3"], "rationale": "…", "correct": "B"}],
        [(CHOICES, "B")],
    ),
    "MathQA": ([{"Problem": "Which is even?", "options": "a ) 1 , b ) 4 , c ) 3", "correct": "b"}], [(CHOICES, "B")]),
    "MedQA": (
        [{"question": "Which is even?", "options": {"A": "1", "B": "4", "C": "3"}, "answer": "4", "answer_idx": "B"}],
        [(CHOICES, "B")],
    ),
    "text": (
        [{"question": "Which is even?", "options": [{"id": 1, "text": "1"}, {"id": 2, "text": "4"}], "answer": "4"}],
        [("Which is even?\n\nA. 1\nB. 4", "B")],
    ),
    "letter and text": (
        [{"question": "Which is even?", "choices": ["1", "4", "3"], "answer": "B. 4"}],
        [(CHOICES, "B")],
    ),
    "a choice in a solution": (
        [{"question": "Which is even?", "choices": ["one", "four"], "answer": "We look.\n#### B"}],
        [("Which is even?\n\nA. one\nB. four", "B")],
    ),
    "a sentence as a choice": (
        [
            {
                "question": "Why?",
                "choices": ["It rains because 2+2=4.", "It snows."],
                "answer": "It rains because 2+2=4.",
            }
        ],
        [("Why?\n\nA. It rains because 2+2=4.\nB. It snows.", "A")],
    ),
    "choices that the question lists": (
        [{"question": CHOICES, "choices": ["1", "4", "3"], "answer": "B"}],
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
    "choices that are no list": (
        [{"question": "Which is even?", "choices": "one or four", "answer": "A"}],
        "whose choices are no list",
    ),
    "parts of messages": ([{"messages": [SQUARE, {"role": "assistant", "content": "4"}]}], PICTURE),
    "a column of images": (
        [{"question": "How many?", "answer": "4", "images": [{"bytes": PIXEL, "path": None}]}],
        PICTURE,
    ),
    "a path of an image": ([{"question": "How many?", "answer": "4", "image_path": "a.png"}], PICTURE),
    "no image in a row": (
        [{"question": "How many?", "answer": "4", "images": [], "image": "None"}],
        [("How many?", "4")],
    ),
    "a place for an image": ([{"question": "<image>\nHow many?", "answer": "4"}], PICTURE),
    "LaTeX": ([{"question": "How many? \\includegraphics{a.png}", "answer": "4"}], PICTURE),
    "operands": ([{"question": "3 + 4?", "a": 3, "b": 4, "answer": 7}], [("3 + 4?", "7")]),
    "printed by NumPy": ([{"question": "Which?", "choices": "['1' '4']", "answer": "1"}], "with a single choice"),
    "ARC as it was published": (
        [{"id": "x", "question": {"stem": "Which?", "choices": []}, "answerKey": "A"}],
        "whose problem has keys and values: data.fields.problem=COLUMN.KEY, as stem",
    ),
    "Markdown": ([{"question": "How many? ![](https://example.org/a.png)", "answer": "4"}], PICTURE),
    "images as choices": (
        [{"question": "How many?", "choices": [{"bytes": PIXEL}, {"bytes": PIXEL}], "answer": "A"}],
        PICTURE,
    ),
    "one of three is lost in our own words": (
        [{"id": "a", "problem": "1?", "answer": "1"}, {"id": "b", "problem": "![](a.png)", "answer": "2"}],
        [("1?", "1")],
    ),
}


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
@pytest.mark.parametrize("name", ROWS)
def test_rows_of_a_form(name: str, suffix: str, tmp_path: Path) -> None:
    rows, wanted = ROWS[name]
    path = tmp_path / f"own{suffix}"
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(lines if suffix == ".jsonl" else json.dumps(rows))
    if isinstance(wanted, str):
        with pytest.raises(UserError, match=re.escape(f"no problem in it: 1 {wanted}")):
            read_data(str(path))
        return
    read = read_data(str(path))
    assert _golds(read) == wanted
    assert sum(read.dropped.values()) == len(rows) - len(wanted)


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


def test_what_was_looked_for_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"no column holds an answer: none is called answer, final_answer, .*solution"
    ) as no:
        _read(tmp_path, [{"question": "1?", "result": "1"}])
    assert "columns: question, result" in no.value.fix
    with pytest.raises(UserError, match=r"no column holds a problem: none is called problem, question"):
        _read(tmp_path, [{"riddle": "1?", "answer": "1"}])
    (tmp_path / "lines.jsonl").write_text('{"riddle": "1?", "key": "1"}\n')
    with pytest.raises(UserError, match="no column holds a problem") as no:
        read_data(str(tmp_path / "lines.jsonl"))
    assert "columns: riddle, key; data.fields.problem=COLUMN" in no.value.fix


def test_empty_columns_and_files_without_rows_are_called_that(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no column holds an answer; empty in every row: answer"):
        _read(tmp_path, [{"question": "1?", "answer": None}])
    for name, text in (("header.csv", "question,answer\n"), ("list.json", "[]")):
        (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match="no rows"):
            read_data(str(tmp_path / name))


def test_verify_shows_what_became_of_each_column_and_trains_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    rows = [
        {
            "context": "Tom has 3 pens.",
            "question": "How many?",
            "options": ["3", "4"],
            "answer": "3",
            "image": "",
            "url": "x",
        },
        {"context": "", "question": "2000?", "options": None, "answer": "So.\n#### 2,000", "image": "", "url": "x"},
        {
            "context": "",
            "question": "Why?",
            "options": None,
            "answer": "We guess because of it.",
            "image": "",
            "url": "x",
        },
    ]
    name = str(tmp_path / "own.json")
    read = _read(tmp_path, rows)
    verify([name])
    said = capsys.readouterr().out
    table = [[cell.strip() for cell in line.strip("│").split("│")] for line in said.splitlines() if line[:1] == "│"]
    assert table == [
        ["context", "problem, its beginning", "joined to the problem: 1 row"],
        ["question", "problem", ""],
        ["options", "choices, below the problem", "listed below the problem: 1 row"],
        [
            "answer",
            "answer",
            "its text, written as its letter: 1 row; after ####: 1 row; thousands separators left out: 1 row",
        ],
        ["image", "not read: a row with a picture or a sound is dropped", ""],
        ["url", "not used", ""],
    ]
    assert f"dropped 1 row: 1 {UNMARKED}\n  golds that are only a part of their cell: 2 of 2\n" in said
    assert tuple(load_training_problems(name)) == read.problems
    assert f"dropped 1 row: 1 {UNMARKED}" in check_golds(compose([f"data={name}"]))
    before = training_fingerprint(name)
    rows[0]["context"] = "Tom has 4 pens."
    _read(tmp_path, rows)
    assert training_fingerprint(name) != before


@pytest.mark.parametrize("answer", ["<think>3?</think>4", "<answer>4</answer>", "\\boxed{1} and \\boxed{4}"])
def test_verify_ends_with_1_where_a_gold_is_a_guess(
    answer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps([{"question": "1?", "answer": answer}]))
    with pytest.raises(UserError, match="golds to mend in") as wrong:
        verify([str(path)])
    assert wrong.value.exit_code == 1
    assert "1 gold guessed: own-0 (" in capsys.readouterr().out


def test_a_worked_solution_as_a_gold_in_our_own_words_is_to_be_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({"id": "a", "problem": "1?", "answer": "We add 2 and 2 because 2+2=4."}) + "\n")
    with pytest.raises(UserError, match="golds to mend in"):
        verify([str(path)])
    assert "a (We add 2 and 2 because 2+2=4. is a worked solution, not an answer)" in capsys.readouterr().out


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
    for words, message in {
        (str(path), "data.fields.problm=Frage"): "unknown field 'problm'",
        (str(path), "data.promt=raw"): "unknown configuration key 'data.promt'",
        ("math500", "data.prompt=raw"): "settings are for data of yours",
    }.items():
        with pytest.raises(UserError, match=message):
            verify(list(words))


@pytest.mark.parametrize(
    ("statement", "form"),
    [
        (GSM.format("How many?"), "####"),
        ("1 + 1? Put the answer between <answer> and </answer>.", "<answer>"),
        ("1 + 1? The last line must be Answer: $Answer.", "Answer: $Answer"),
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
