import json
import runpy
import zlib
from collections.abc import Iterator
from pathlib import Path

import pandas
import pyarrow as pa
import pytest
from pyarrow import parquet

from tepo.common.errors import UserError
from tepo.common.files import parse_json
from tepo.config.compose import compose
from tepo.problems.data_reader import GYM_SIZE, read_data
from tepo.problems.findings import find
from tepo.problems.grader import Grader
from tepo.problems.grader.grader import NOT_TRIED
from tepo.problems.hashes import set_hash
from tepo.problems.problem import Problem
from tepo.problems.rows import pair_of
from tepo.problems.sources import read_problem_file
from tepo.problems.training_sets import system_of
from tepo.store.run_id import identity
from tepo.training.preflight import check_golds

WANTED = [("What is 2 + 3?", "5"), ("What is 70 * 20?", "1400"), ("Half of 3?", "\\frac{3}{2}")]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "{}"}]


def _chat(statement: str, answer: str | None = None) -> list[dict[str, str]]:
    turns = [{**turn, "content": turn["content"].replace("{}", statement)} for turn in CHAT]
    return turns + ([{"role": "assistant", "content": answer}] if answer else [])


def _write(path: Path, rows: list[dict]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        pandas.DataFrame(rows).to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


FORMS = {
    "columns": lambda q, a: {"question": q, "answer": a},
    "a spreadsheet's": lambda q, a: {"Question": q, "Final Answer": a},
    "MATH": lambda q, a: {"problem": q, "solution": f"We think.\n\nSo it is $\\boxed{{{a}}}$, done."},
    "GSM8K": lambda q, a: {"question": q, "answer": f"First <<1+1=2>> this.\n#### {'1,400' if a == '1400' else a}"},
    "chat": lambda q, a: {"messages": _chat(q, f"It is \\boxed{{{a}}}.")},
    "ShareGPT": lambda q, a: {
        "conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": f"\\boxed{{{a}}}"}]
    },
    "verl": lambda q, a: {
        "data_source": "mine",
        "prompt": _chat(q),
        "reward_model": {"style": "rule", "ground_truth": a},
        "extra_info": {"index": 1},
    },
}


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet", ".csv", ".tsv"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_in_every_kind_of_file_gives_the_same_problems(form, suffix, tmp_path):
    rows = [FORMS[form](*one) for one in WANTED]
    if suffix in (".csv", ".tsv"):  # a table keeps what is no text as JSON
        rows = [{k: v if isinstance(v, str) else json.dumps(v) for k, v in row.items()} for row in rows]
    read = read_data(str(_write(tmp_path / f"own{suffix}", rows)))
    assert [(one.prompt, one.answer) for one in read.problems] == WANTED
    assert [one.id for one in read.problems] == ["own-0", "own-1", "own-2"]
    assert not read.dropped
    assert any("system messages left out: 3 rows" in cells for _, _, cells in read.columns) == (
        form in ("chat", "verl")
    )


@pytest.mark.parametrize("column", ["messages", "prompt", "system_prompt"])
def test_system_prompts_are_kept_by_choice(column, tmp_path):
    own_column = {"question": "1?", "answer": "1", "system_prompt": "Be brief.\n"}
    form = {"messages": FORMS["chat"], "prompt": FORMS["verl"]}.get(column, lambda q, a: own_column)
    path = _write(tmp_path / "own.parquet", [form("1?", "1")])
    plain, words = read_data(str(path)), [f"data={path}", f"data.fields.system={column}"]
    config = compose(words)
    kept = read_data(str(path), config.data.fields)
    assert [(one.prompt, one.answer, one.system) for one in kept.problems] == [("1?", "1", "Be brief.")]
    assert [(one.prompt, one.answer, one.system) for one in plain.problems] == [("1?", "1", "")]
    assert kept.losses() == ["one system prompt for all problems; benchmarks are asked with it, too"]
    assert system_of(config.data) == "Be brief."
    assert identity(config)["problems"] != identity(compose(words[:1]))["problems"]  # other prompts, another run


def test_what_is_left_out_is_counted_by_its_reason(tmp_path):
    pairs = (("1 + 1?", "2"), ("", "2"), ("2 + 2?", ""), ("3 + 3?", "nan"), ("4 + 4?", "long " * 60), ("1 + 1?", "2"))
    rows = [{"question": question, "answer": answer} for question, answer in pairs]
    read = read_data(str(_write(tmp_path / "own.csv", rows)))
    assert read.dropped == {"without a problem": 1, "without an answer": 2, "whose solution marks no final answer": 1}


def test_columns_of_other_names_are_named_in_the_configuration(tmp_path):
    path = _write(tmp_path / "own.parquet", [{"Frage": "1 + 1?", "Lohn": {"gold": 2.0}, "kind": "sum"}])
    with pytest.raises(UserError, match="no column holds a problem"):
        read_data(str(path))
    fields = {"problem": "Frage", "answer": "Lohn.gold", "family": "kind"}
    (only,) = read_data(str(path), fields).problems
    assert (only.prompt, only.answer, only.family) == ("1 + 1?", "2", "sum")
    words = [f"data={path}", *(f"data.fields.{key}={column}" for key, column in fields.items())]
    config = compose(words)
    assert config.data.fields == fields
    renamed = _write(tmp_path / "other.csv", [{"question": "1 + 1?", "answer": "2"}])
    assert identity(config)["problems"] == identity(compose([f"data={renamed}"]))["problems"]  # by content alone
    with pytest.raises(UserError, match=r"no column 'Lohn\.silver'"):
        read_data(str(path), fields | {"answer": "Lohn.silver"})


@pytest.mark.reasoning_gym
def test_a_task_of_reasoning_gym_brings_its_own_scorer() -> None:
    """Problems and scores are those of the package itself."""
    import reasoning_gym

    problems = read_data("reasoning_gym:chain_sum").problems
    made = reasoning_gym.create_dataset("chain_sum", size=GYM_SIZE, seed=0)
    assert [one.prompt for one in problems[:20]] == [made[index]["question"] for index in range(20)]
    config = compose(["data=reasoning_gym:chain_sum"])
    (reward,) = config.data.reward.values()
    score = runpy.run_path(reward.file)[reward.function]
    gold = made[3]["answer"]
    assert score(problems[3], f"It is \\boxed{{{gold}}}.") == 1.0
    assert score(problems[3], f"So:\n{gold}") == 1.0
    assert score(problems[3], f"It is \\boxed{{{int(gold) + 1}}}.") < 1.0
    with pytest.raises(UserError, match="did you mean 'chain_sum'"):
        read_data("reasoning_gym:chain_sun")


ROW = '{"id": "%s", "problem": "%s+1=", "answer": %s}\n'
GOOD = ROW % ("a", 1, '"2"') + ROW % ("b", 2, "3")


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader() as one:
        yield one


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"id": "c", "problem": "p", "answer": "1", "answer": "2"}', "line 3: the key 'answer' is there twice"),
        ('{"id": "c", "problem": "p", "answer": Infinity}', r"line 3: the answer is Infinity.*in quotes it is \\infty"),
        ('{"id": "c", "problem": "p", "answer": 1e400}', "line 3: the answer 1e400 would be read as inf"),
        ('{"id": "c", "problem": "p", "answer": [5]}', "line 3: the answer is neither a text nor a number"),
        ('{"id": "c", "problem": "\\ud800", "answer": "1"}', "line 3: .*half a character: '.ud800'"),
        ("[" * 5000, "nested more than 100 deep"),
        ('{"id": "b", "problem": "p", "answer": "1"}', "lines 2, 3 have the same id 'b'"),
        ('{"id": "c", "problem": "p", "ans', "line 3: not JSON from column 29 on"),
    ],
)
def test_a_row_that_is_not_what_it_says_is_refused_with_its_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x.jsonl").write_text(GOOD + content)
    with pytest.raises(UserError, match=message.removesuffix("$") + ("\n" if message.endswith("$") else "")):
        read_problem_file(tmp_path / "x.jsonl")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PAR1" + zlib.compress(GOOD.encode() * 99) + b"\n\xffPAR1", "is JSON; line 1: not text in UTF-8"),
        (GOOD.encode("utf-16-be"), "the file is in UTF-16"),
        (b"", "the file holds no problems"),
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
    assert pair_of({"gold": 1e5, "prediction": float("nan")}) == ("100000.0", "NaN")  # of a row to grade
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


def test_a_file_without_a_gold_that_can_be_read_is_refused(tmp_path: Path) -> None:
    rows = [{"id": answer, "problem": answer, "answer": answer} for answer in ("N/A", r"\frac{")]
    name = str(_write(tmp_path / "mine.jsonl", rows))
    with pytest.raises(UserError, match="no reward would be given: 2 of 2 golds cannot be read"):
        check_golds(compose([f"data={name}"]))
    (tmp_path / "own.py").write_text("def reward(problem, response):\n    return 1.0\n")
    assert check_golds(compose([f"data={name}", f"data.reward={tmp_path}/own.py"])) == ""
    assert check_golds(compose([])) == ""
