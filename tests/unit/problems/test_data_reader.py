import json
import runpy
from pathlib import Path

import pandas
import pyarrow as pa
import pytest
from pyarrow import parquet

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.problems.data_reader import GYM_SIZE, ReadData, read_data
from tepo.problems.training_sets import system_of
from tepo.store.run_id import identity

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


@pytest.mark.parametrize("column", ["messages", "conversations", "prompt", "system_prompt"])
def test_system_prompts_are_kept_by_choice(column, tmp_path):
    forms = {
        "messages": FORMS["chat"],
        "conversations": lambda q, a: {
            "conversations": [
                {"from": "system", "value": "Be brief."},
                *({"from": who, "value": text} for who, text in (("human", q), ("gpt", f"\\boxed{{{a}}}"))),
            ]
        },
        "prompt": FORMS["verl"],
        "system_prompt": lambda q, a: {"question": q, "answer": a, "system_prompt": "Be brief.\n"},
    }
    path = _write(tmp_path / "own.parquet", [forms[column](*one) for one in WANTED])
    plain, words = read_data(str(path)), [f"data={path}", f"data.fields.system={column}"]
    config = compose(words)
    kept = read_data(str(path), config.data.fields)
    assert [(one.prompt, one.answer) for one in kept.problems] == WANTED
    assert {one.system for one in kept.problems} == {"Be brief."} != {one.system for one in plain.problems} == {""}
    assert (column, "system prompt") in [
        (of, what.partition(",")[0].partition(" and")[0]) for of, what, _ in kept.columns
    ]
    assert kept.losses() == ["one system prompt for all problems; benchmarks are asked with it, too"]
    if column != "system_prompt":  # which is no message
        assert plain.losses() == [f"system messages left out of 3 rows: {words[1]} keeps them"]
    assert system_of(config.data) == "Be brief."
    assert identity(config)["problems"] != identity(compose(words[:1]))["problems"]  # other prompts, another run


def test_rows_with_several_system_prompts_or_none(tmp_path):
    def read(*systems: tuple[str, ...], late: str = "") -> ReadData:
        rows = [
            {
                "messages": [
                    *({"role": "system", "content": text} for text in texts),
                    *_chat(f"{index} + 1?")[1:],
                    *([{"role": "system", "content": late}] if late else []),
                ],
                "answer": "2",
            }
            for index, texts in enumerate(systems)
        ]
        return read_data(str(_write(tmp_path / "own.json", rows)), {"system": "messages"})

    mixed = read(("A",), (), ("A",))
    assert [one.system for one in mixed.problems] == ["A", "", "A"]
    assert mixed.systems == "1 system prompt in 2 of 3 problems; benchmarks are asked without any"
    assert read(("A",), ("B",)).systems.startswith("2 system prompts in 2 of 2 problems")
    assert read(("A",), ("A", "B")).dropped == {"with several system messages": 1}
    with pytest.raises(UserError, match="2 whose system message is not the first"):
        read((), (), late="A")
    with pytest.raises(UserError, match="no row has a system prompt"):
        read((), ())
    path = _write(tmp_path / "other.json", [{"question": "1?", "answer": "1", "rules": {"a": 1}}])
    with pytest.raises(UserError, match="whose system prompt is no text"):
        read_data(str(path), {"system": "rules"})


def test_what_is_left_out_is_counted_by_its_reason(tmp_path):
    rows = [
        {"question": "1 + 1?", "answer": "2"},
        {"question": "", "answer": "2"},
        {"question": "2 + 2?", "answer": ""},
        {"question": "3 + 3?", "answer": "nan"},
        {"question": "4 + 4?", "answer": "long " * 60},
        {"question": "1 + 1?", "answer": "2"},
    ]
    read = read_data(str(_write(tmp_path / "own.csv", rows)))
    assert read.dropped == {"without a problem": 1, "without an answer": 2, "whose solution marks no final answer": 1}
    said = read.lines()
    assert read.columns == (("question", "problem", ""), ("answer", "answer", ""))
    assert "dropped 4 rows: 1 without a problem, 2 without an answer" in said[0]
    assert "1 problem more than once" in said
    chats = [
        {"messages": _chat("1 + 1?", "\\boxed{2}") + _chat("2 + 2?", "\\boxed{4}")},
        {"messages": _chat("3?", "3")},
    ]
    assert read_data(str(_write(tmp_path / "own.jsonl", chats))).dropped == {"with several questions": 1}


def test_columns_of_other_names_are_named_in_the_configuration(tmp_path):
    path = _write(tmp_path / "own.parquet", [{"Frage": "1 + 1?", "Lohn": {"gold": 2.0}, "kind": "sum"}])
    with pytest.raises(UserError, match="no column holds a problem") as refused:
        read_data(str(path))
    assert "columns: Frage, Lohn, kind" in str(refused.value.fix)
    fields = {"problem": "Frage", "answer": "Lohn.gold", "family": "kind"}
    (only,) = read_data(str(path), fields).problems
    assert (only.prompt, only.answer, only.family) == ("1 + 1?", "2", "sum")
    words = [f"data={path}", *(f"data.fields.{key}={column}" for key, column in fields.items())]
    config = compose(words)
    assert config.data.fields == fields
    renamed = _write(tmp_path / "other.csv", [{"question": "1 + 1?", "answer": "2"}])
    assert identity(config)["problems"] == identity(compose([f"data={renamed}"]))["problems"]  # by content alone
    with pytest.raises(UserError, match="unknown field 'anser'"):
        read_data(str(path), {"anser": "Lohn"})
    with pytest.raises(UserError, match=r"no column 'Lohn\.silver'"):
        read_data(str(path), fields | {"answer": "Lohn.silver"})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("own.csv", None, "no such file"),
        ("own.csv", "", "not read as .csv"),
        ("own.json", "{]", "not read as .json"),
        ("own.parquet", "no parquet", "not read as .parquet"),
        ("own.json", "[]", "no rows"),
        ("own.csv", "question,answer\n,\n", "no column holds|no problem in it"),
        ("own.jsonl", '{"question": "1?", "answer": "1"}\n{broken\n', "line 2"),
    ],
)
def test_what_cannot_be_read_ends_in_a_sentence(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        read_data(str(tmp_path / name))


def test_a_file_in_our_own_words_is_taken_whole_or_not_at_all(tmp_path):
    rows = [{"id": "a", "problem": "1 + 1?", "answer": "2"}, {"id": "b", "problem": "2 + 2?"}]
    with pytest.raises(UserError, match="line 2: no answer"):
        read_data(str(_write(tmp_path / "own.jsonl", rows)))


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
