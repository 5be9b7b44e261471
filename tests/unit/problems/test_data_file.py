import json
import logging
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.common.files import parse_json
from tepo.config.compose import compose
from tepo.problems.findings import find
from tepo.problems.grader import Grader
from tepo.problems.grader.grader import NOT_TRIED
from tepo.problems.hashes import set_hash
from tepo.problems.problem import Problem
from tepo.problems.rows import pair_of
from tepo.problems.sources import read_problem_file
from tepo.training.preflight import check_golds, check_machine
from tepo.training.run import Run
from tepo_cli.commands.problems import _row, verify
from tepo_cli.show_run import describe_run

ROW = '{"id": "%s", "problem": "%s+1=", "answer": %s}\n'
GOOD = ROW % ("a", 1, '"2"') + ROW % ("b", 2, "3")


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader() as one:
        yield one


def write(folder: Path, *answers: str, prompts: str = "") -> str:
    path = folder / "mine.jsonl"
    asked = prompts or "".join(map(chr, range(97, 97 + len(answers))))
    rows = [{"id": f"r{number}", "problem": f"{asked[number]}=", "answer": one} for number, one in enumerate(answers)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"id": "c", "problem": "p", "answer": "1", "answer": "2"}', "line 3: the key 'answer' is there twice"),
        ('{"id": "c", "problem": "p", "answer": "1", "meta": {"a": 1, "a": 1}}', "line 3: the key 'a' is there twice"),
        ('{"id": "c", "problem": "p", "answer": Infinity}', r"line 3: the answer is Infinity.*in quotes it is \\infty"),
        ('{"id": "c", "problem": "p", "answer": -Infinity}', "line 3: the answer is Infinity"),
        ('{"id": "c", "problem": "p", "answer": NaN}', "line 3: the gold answer is NaN"),
        ('{"id": "c", "problem": "p", "answer": 1e400}', "line 3: the answer 1e400 would be read as inf"),
        ('{"id": "c", "problem": "p", "answer": 1e-99999999999999999999}', "would be read as 0.0"),
        ('{"id": "c", "problem": "p", "answer": 12345678901234567890.5}', "would be read as 1.234567890123456.e.19"),
        ('{"id": "c", "problem": "p", "answer": [5]}', "line 3: the answer is neither a text nor a number"),
        ('{"id": ["c"], "problem": "p", "answer": "5"}', "line 3: the id is neither a text nor a number"),
        ('{"id": "c", "problem": "p", "answer": false}', "line 3: the answer is neither"),
        ('{"id": "c", "problem": "p", "answr": "5"}', "line 3: no answer, but answr"),
        ('{"id": "c", "problem": "p", "answer": null}', "line 3: no answer$"),
        ('{"id": "c", "problem": " ", "answer": "4"}', "line 3: the problem is empty"),
        ('{"id": "c", "problem": 3, "answer": "1"}', "line 3: the problem is no text"),
        ('{"id": "c", "problem": "p", "answer": " "}', "line 3: the gold answer is empty"),
        ('{"id": "c", "problem": "\\ud800", "answer": "1"}', "line 3: .*half a character: '.ud800'"),
        ("[" * 5000, "nested more than 100 deep"),
        ('{"id": "b", "problem": "p", "answer": "1"}', "lines 2, 3 have the same id 'b'"),
        ('[{"id": "c", "problem": "p", "answer": "1"}]', "line 3: not keys and values"),
        ("NaN", "line 3: not keys and values"),
        ("5 5", "line 3: not JSON from column 3 on"),
        (
            '{"id": "c", "problem": "p", "answer": %s}' % ("1" * 5000),
            "line 3: a number of 5,000 digits: put it in quot",
        ),
        ('{"id": "c", "problem": "p", "ans', "line 3: not JSON from column 29 on"),
        ('{"id": "c", "problem": "p\0", "answer": "1"}', "line 3: not JSON"),
    ],
)
def test_a_row_that_is_not_what_it_says_is_refused_with_its_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x.jsonl").write_text(GOOD + content)
    with pytest.raises(UserError, match=message.removesuffix("$") + ("\n" if message.endswith("$") else "")):
        read_problem_file(tmp_path / "x.jsonl")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"id,problem,answer\na,1+1=,2\n", "none of its 2 lines is JSON; line 1: not JSON from column 1 on"),
        (
            json.dumps([{"id": "a", "problem": "p", "answer": "1"}] * 3, indent=1).encode(),
            "none of its 17 lines is JSON",
        ),
        (b"PAR1" + zlib.compress(GOOD.encode() * 99) + b"\n\xffPAR1", "is JSON; line 1: not text in UTF-8"),
        (GOOD.encode("utf-16-be"), "the file is in UTF-16"),
        (GOOD.encode() + b'{"id": "\xe9", "problem": "p", "answer": "1"}', "line 3: not text in UTF-8"),
        (b"", "the file holds no problems"),
        (b"\r\n \n", "the file holds no problems"),
    ],
)
def test_a_file_of_another_kind_is_one_sentence(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read_problem_file(tmp_path / "x.jsonl", most=None)
    assert caught.value.what.count("\n") == 0


def test_what_was_valid_has_the_content_that_it_had(tmp_path: Path) -> None:
    """The hash was computed before numbers kept their text."""
    answers = ("5", "5.0", "1e5", "0.30000000000000004", "12345678901234567890", '"5 "', "1e22", "-0.0", "1.10")
    lines = [ROW % (number, number, answer) for number, answer in enumerate(answers)]
    (tmp_path / "x.jsonl").write_bytes(b"\xef\xbb\xbf" + "\n".join(lines).replace("\n", "\r\n").encode())
    problems = read_problem_file(tmp_path / "x.jsonl")
    shown = ["5", "5.0", "100000.0", "0.30000000000000004", "12345678901234567890", "5 ", "1e+22", "-0.0", "1.1"]
    assert [problem.answer for problem in problems] == shown
    assert set_hash(problems) == "b1e524b9e9d32d65128506c8f4cc49ca4bc7484547f3dcf03c1b837fb9171306"


def test_half_a_row_with_many_brackets_and_quotes_is_refused_at_once() -> None:
    """It took minutes: each quote began another search for the end of a string."""
    with pytest.raises(ValueError, match="not JSON"):
        parse_json('{"problem": "' + "{" * 200 + '\\"' * 300_000)


NOTHING = ("None", "N/A", "null", "Infinity", "NaN ", "-", "?", "unknown", "$-$", r"\text{None}", r"\boxed{n/a}", "...")
ANSWERS = ("no solution", r"\infty", r"\emptyset", "0", "True", "N", "<", "A. 5", r"\text{(C)} 12", "5 OR 6", "1e+22")


def test_what_is_no_answer_and_what_is_one(grader: Grader) -> None:
    answers = (*NOTHING, *ANSWERS)
    found = find([Problem(one, one, one) for one in answers], grader)
    assert found.unread == [f"{one} ({one.strip()} is no answer)" for one in NOTHING]
    assert (found.golds, found.tried, found.several) == (len(answers), len(answers), [])


def test_the_noise_of_a_computer_is_named_and_a_long_decimal_is_not(grader: Grader) -> None:
    answers = ("0.30000000000000004", "0.7999999999999999", "3.141592653589793", "0.1", "1000000000001")
    unread = find([Problem(one, one, one) for one in answers], grader).unread
    assert [one.split()[0] for one in unread] == list(answers[:2])


READ = (
    r"A. 5",
    r"B) \frac{1}{2}",
    r"\text{(C)} 12",
    r"\frac{dM}{dt}=kM",
    r"x \not\equiv 1 \pmod 3",
    r"\Pr[X=2] = \frac14",
    r"March 14",
    r"5 km/h",
    r"101_2",
)


def test_a_gold_that_another_text_matches_can_be_read(grader: Grader) -> None:
    assert grader.check_golds(READ) == []


def test_golds_are_read_within_a_budget_and_plain_ones_without_a_worker() -> None:
    golds = [*map(str, range(1000)), r"\frac{1}{2}", "x" * 3000, "(" * 200, "March 14", r"\frac{"]
    with Grader() as grader:
        assert grader.check_golds(golds[:-1], seconds=1) == [(1001, "too long"), (1002, "too deep")]
        assert grader.worker_pids() == []
        assert {why for _, why in grader.check_golds(golds, seconds=0)} == {NOT_TRIED}
        few = [grader.check_golds(one, seconds=3e-4) for one in (golds, golds[::-1])]
        assert [index for index, _ in few[0]] == [1004 - index for index, _ in reversed(few[1])]
        assert [why for _, why in few[0]].count(NOT_TRIED) == 2
        assert grader.worker_pids() == []
    found = find([Problem(one, one, one) for one in (r"\frac{", "5")], grader, seconds=0)
    assert (found.golds, found.tried, found.unread, found.useless) == (2, 1, [], False)


def test_one_problem_with_two_golds_is_wrong_and_with_the_same_one_a_remark(grader: Grader) -> None:
    golds = {"one  half": ("1/2", "0.5 "), "x": ("7", "8", "7"), "y": ("3",)}
    problems = [Problem(f"{prompt}{one}", f" {prompt}", one) for prompt, every in golds.items() for one in every]
    found = find(problems, grader)
    assert found.several == ["x7, x8, x7: the same problem with the answers 7, 8"]
    assert found.repeated == ["one  half1/2, one  half0.5 : the same problem with the answer 1/2"]


SAID = (
    r"8 of 10 golds cannot be read, so that only the same text is right: r2 \(cannot read \\frac\{\}\); "
    r"r3 \(None is no answer\); r4 \(N/A is no answer\); and 5 more\. "
    r"1 problem with golds that differ: r0, r1: the same problem with the answers 2, 3 "
)
BAD = ("2", "3", r"\frac{", "None", "N/A", "?", "null", "-", "unknown", "x^^2")


@pytest.mark.parametrize("say", [check_machine, describe_run])
def test_training_names_them_before_the_first_step(
    say: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    config = compose([f"data={write(tmp_path, *BAD, prompts='1123456789')}", f"store={tmp_path / 'runs'}"])
    with caplog.at_level(logging.WARNING):
        say(Run(config))
    said = capsys.readouterr().err.replace("\n", " ") + caplog.text
    assert re.search(SAID, said), said
    assert f"`tepo data verify {tmp_path}/mine.jsonl` lists them" in said


def test_a_file_without_a_gold_that_can_be_read_is_refused(tmp_path: Path) -> None:
    name = write(tmp_path, "N/A", r"\frac{")
    with pytest.raises(UserError, match="no reward would be given: 2 of 2 golds cannot be read"):
        check_golds(compose([f"data={name}"]))
    (tmp_path / "own.py").write_text("def reward(problem, response):\n    return 1.0\n")
    assert check_golds(compose([f"data={name}", f"data.reward={tmp_path}/own.py"])) == ""
    assert check_golds(compose([])) == ""


def test_verify_ends_with_1_where_golds_are_to_be_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verify([write(tmp_path, "1", "2", "1", prompts="aba")])
    assert "remark: 1 problem more than once, r0, r2: the same problem with" in capsys.readouterr().out
    with pytest.raises(UserError, match="golds to mend in") as caught:
        verify([write(tmp_path, "1", "None")])
    assert caught.value.exit_code == 1
    assert "None is no answer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"gold": "1", "gold": "2", "prediction": "1"}', "the key 'gold' is there twice"),
        ('{"gold": null, "prediction": "1"}', "the gold is empty"),
        ('{"gold": "NaN", "prediction": "1"}', "the gold is NaN"),
        ('{"gold": Infinity, "prediction": "1"}', "the gold is Infinity"),
        ('{"gold": 12345678901234567890.5, "prediction": "1"}', "put it in quotes"),
    ],
)
def test_rows_to_grade_go_through_the_same_door(line: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        _row(line.encode())
    assert pair_of({"gold": 1e5, "prediction": float("nan")}) == ("100000.0", "NaN")
