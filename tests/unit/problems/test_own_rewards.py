from dataclasses import replace
from pathlib import Path

import pytest

from tepo.common import trust
from tepo.common.errors import RunFailed, UserError
from tepo.config.compose import compose
from tepo.config.run_config import NamedReward, RunConfig
from tepo.problems.data_reader import read_data
from tepo.problems.grader import Grader, GraderOptions
from tepo.problems.problem import Problem
from tepo.problems.rewards.own_rewards import OwnRewards, Scored, check_failures, check_rewards, try_out
from tepo.store.run_id import run_id
from tepo.studies.plan import make_plan
from tepo.studies.study import load_study
from tepo.training.preflight import check_settings
from tepo.training.run import Run
from tests.support.runs import write

SUM = Problem("1", "1+1=", "2", "add")
OPTIONS = GraderOptions(timeout=0.5, workers=1)
FILE = """
import random
calls = 0

def length(problem, response):
    return min(len(response), 10) / 10

def asked(problem, response):
    return (problem.id, problem.prompt, problem.answer, problem.family) == ("1", "1+1=", "2", "add")

def first(problem, response):
    global calls
    calls += 1
    return calls == 1

def drawn(problem, response):
    return random.random()

def two(problem, response):
    print("to nobody")
    return 2

def raises(problem, response):
    raise ValueError("not " + response)

def ends(problem, response):
    import os
    os._exit(0)

def loops(problem, response):
    while True:
        pass

def allocates(problem, response):
    return len([0] * 10**10)
"""


def rewards(folder: Path, *functions: str, weight: float = 1.0, text: str = FILE) -> dict[str, NamedReward]:
    (folder / "own.py").write_text(text)
    each = ", ".join(
        f"{name}: {{file: '{folder / 'own.py'}', function: {name}, weight: {weight}}}" for name in functions
    )
    return compose([f"data.reward={{{each}}}"]).data.reward


def scored(named: dict[str, NamedReward], *texts: str) -> list[Scored]:
    with Grader(OPTIONS) as grader, OwnRewards(named, grader) as own:
        return own.score([(SUM, texts)])


def test_functions_of_problem_and_response_and_the_verdict(tmp_path: Path) -> None:
    named = {"correct": NamedReward("grader", weight=3.0)} | rewards(tmp_path, "length", "asked")
    with Grader(OPTIONS) as grader, OwnRewards(named, grader) as own:
        found = own.score([(SUM, ["\\boxed{2}", "abc"]), (SUM, ["\\boxed{2}!!"])])
        assert [one.rewards for one in found] == [(1.0, 0.9, 1.0), (0.0, 0.3, 1.0), (1.0, 1.0, 1.0)]
        assert [own.mean(one.rewards) for one in found] == pytest.approx([4.9 / 5, 1.3 / 5, 1])
        assert own.mean(found[2].rewards) == 1.0
    assert not any(one.failure for one in found)


def test_a_reward_depends_on_no_other_call(tmp_path: Path) -> None:
    texts = ["a", "bb", "c", "bb", "dd"]
    found = scored(rewards(tmp_path, "first", "drawn"), *texts)
    assert {one.rewards[0] for one in found} == {1.0}
    assert len({one.rewards[1] for one in found}) == 1
    assert found == scored(rewards(tmp_path, "first", "drawn"), *reversed(texts))


@pytest.mark.parametrize(
    ("function", "line", "said"),
    [
        ("two", 19, "returned 2, which is outside [0, 1]"),
        ("raises", 24, "ValueError: not abc"),
        ("ends", 0, "ends ended its process"),
        ("allocates", 0, "allocates out of memory"),
    ],
)
def test_a_call_that_fails_counts_as_nothing_and_is_named(tmp_path: Path, function: str, line: int, said: str) -> None:
    one, other = scored(rewards(tmp_path, function, "length"), "abc", "abc")
    assert one.rewards == other.rewards == (0.0, 0.3)
    assert one.failure == f"{tmp_path / 'own.py'}{f':{line}' if line else ''}: {said}"


@pytest.mark.disaster
def test_a_call_that_never_ends_is_ended(tmp_path: Path) -> None:
    endless, after = scored(rewards(tmp_path, "loops"), "abc"), scored(rewards(tmp_path, "length"), "abc")
    assert endless[0].rewards == (0.0,)
    busy = "hardly ran at all"  # a machine that gave the worker no twentieth of its time
    assert endless[0].failure in [
        f"{tmp_path / 'own.py'}: loops {why}" for why in ("took more than grader.timeout", busy)
    ]
    assert after[0].rewards == (0.3,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def reward(problem): return 1", "reward(problem) does not take a problem and a response"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_file_that_cannot_be_called_is_refused_before(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        check_rewards(rewards(tmp_path, "reward", text=text), OPTIONS)
    assert said in str(refused.value)
    assert refused.value.exit_code == 2


CONTEXT = """
import asyncio
under_way = 0

def longest(problem, responses):
    return [len(text) == max(map(len, responses)) for text in responses]

def trl(completions, tests, answer, **kwargs):
    assert kwargs == {"prompts": ["1+1="] * len(completions), "hint": [None] * len(completions)}
    return [float(test in text and gold == "2") for text, test, gold in zip(completions, tests, answer)]

async def together(problem, response):
    global under_way
    under_way += 1
    await asyncio.sleep(0.05)
    return under_way == 3

async def judged(problem, responses):
    await asyncio.sleep(0)
    return [{"reward": 0.5, "usd": 0.25 * len(text), "seen": len(responses)} for text in responses]

def short(problem, responses):
    return [1]

def cost(problem, response):
    return {"reward": 1, "usd": float("nan")}
"""
ROW = replace(SUM, columns={"tests": "bb", "hint": None})


def in_context(folder: Path, function: str, *texts: str) -> list[Scored]:
    named = rewards(folder, function, text=CONTEXT)
    with Grader(OPTIONS) as grader, OwnRewards(named, grader, tuple(ROW.columns)) as own:
        assert own.of_groups == (function != "cost")
        return own.score([(ROW, texts), (ROW, texts[:1])])


@pytest.mark.parametrize(
    ("function", "expected"),
    [("longest", [0, 1, 1, 1]), ("trl", [0, 1, 1, 0]), ("together", [1, 1, 1, 0]), ("judged", [0.5] * 4)],
)
def test_a_reward_may_take_the_group_and_columns_of_the_data(
    tmp_path: Path, function: str, expected: list[float]
) -> None:
    scored = in_context(tmp_path, function, "a", "bb", "bb")
    assert [row.rewards for row in scored] == [(value,) for value in expected]
    assert not any(row.failure for row in scored)
    if function == "judged":
        figures = [dict(row.figures) for row in scored]
        assert figures == [
            {"judged/usd": usd, "judged/seen": seen} for usd, seen in ((0.25, 3), (0.5, 3), (0.5, 3), (0.25, 1))
        ]


@pytest.mark.parametrize(
    ("function", "said"),
    [("short", "returned 1 values for 2 responses"), ("cost", "returned nan as usd, which is no finite number")],
)
def test_what_a_group_is_given_must_fit_it(tmp_path: Path, function: str, said: str) -> None:
    scored = in_context(tmp_path, function, "a", "bb")
    assert scored[0].rewards == (0.0,)
    assert said in scored[0].failure


def test_a_keyword_that_is_no_column_is_named_before(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"takes tests, which data\.columns does not name"):
        check_rewards(rewards(tmp_path, "trl", text=CONTEXT), OPTIONS, ())
    check_rewards(rewards(tmp_path, "trl", text=CONTEXT), OPTIONS, ("tests",))


ROWS = "question,tests,url\nName a fruit.,apple,x\nName a nut.,almond,y\n"


def own_data(folder: Path, *words: str, rows: str = ROWS) -> RunConfig:
    (folder / "rows.csv").write_text(rows)
    (folder / "own.py").write_text("def reward(completions, tests):\n    return [1.0 for _ in completions]\n")
    return compose([f"data={folder / 'rows.csv'}", "data.columns=[tests]", f"data.reward={folder / 'own.py'}", *words])


def test_rows_without_answers_are_data_for_a_reward_that_is_given_columns(tmp_path: Path) -> None:
    config = own_data(tmp_path)
    check_settings(Run(config))
    read = read_data(config.data.problems, columns=config.data.columns)
    assert [(problem.prompt, problem.answer, problem.columns) for problem in read.problems] == [
        ("Name a fruit.", "", {"tests": "apple"}),
        ("Name a nut.", "", {"tests": "almond"}),
    ]
    assert ("tests", "given to rewards (data.columns)", "") in read.columns
    other_test = run_id(own_data(tmp_path, rows=ROWS.replace("almond", "walnut")))
    other_url = run_id(own_data(tmp_path, rows=ROWS.replace("x", "z")))
    assert other_test != run_id(own_data(tmp_path)) == other_url


def test_one_that_fails_on_all_that_it_is_tried_on_is_refused(tmp_path: Path) -> None:
    refusal = pytest.raises(UserError, match="fails on all of 2 responses: ValueError")
    with Grader(OPTIONS) as grader, OwnRewards(rewards(tmp_path, "raises"), grader) as own, refusal as refused:
        try_out(own, [SUM])
    assert refused.value.where == f"{tmp_path / 'own.py'}:24"


def test_failures_end_a_step_where_they_are_more_than_half() -> None:
    check_failures(["own.py:3: ValueError: a"] * 4, 8)
    failures = ["own.py:9: returned NaN", *(f"own.py:3: ValueError: {n}" for n in range(4))]
    with pytest.raises(RunFailed, match="more than half of 8 responses, as in: ValueError: 0") as ended:
        check_failures(failures, 8)
    assert ended.value.where == "own.py:3"


def test_the_text_counts_in_the_id_and_the_name_does_not(tmp_path: Path) -> None:
    one = write(tmp_path / "a/one.py", "def reward(problem, response): return 1\n")
    two = write(tmp_path / "b/two.py", one.read_text())
    first, second = (run_id(compose([f"data.reward={path}"])) for path in (one, two))
    assert first == second != run_id(compose())
    write(two, "def reward(problem, response): return 0\n")
    named = f"data.reward={{x: {{file: {one}, weight: 2}}}}"
    others = [f"data.reward={two}", named, "data.flip_rewards=0.1", "grader.memory_mb=2048"]
    assert len({first, *(run_id(compose([word])) for word in others)}) == 1 + len(others)
    neutral = ["data.flip_rewards=0", "data.reward=null", "grader.recycle=1"]
    assert {run_id(compose([word])) for word in neutral} == {run_id(compose())}


def test_a_study_of_a_stranger_that_names_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strange.py").write_text("def reward(problem, response): return 1\n")
    word = f"data.reward={tmp_path / 'strange.py'}"
    write(
        tmp_path / "experiments/theirs.yaml",
        f"title: theirs\nrows: [{{label: A, objective: gspo, overrides: ['{word}']}}]\n"
        "scales: {laptop: {models: [laptop], seeds: [0]}}\n",
    )
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    (unit,) = make_plan(load_study("theirs"), "laptop", store=tmp_path / "runs")
    with trust.caller(), pytest.raises(UserError, match="--trust executes it"):
        unit.as_typed()
    with trust.caller():
        trust.say([word])
        assert word in unit.as_typed()


def test_a_prompt_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "ask.txt").write_text("Say {problem}\nnow.\n")
    file, text = compose([f"data.prompt={tmp_path / 'ask.txt'}"]), compose(["data.prompt=Say {problem}\nnow."])
    assert file.data.prompt == text.data.prompt == "Say {problem}\nnow."
    assert run_id(file) == run_id(text) != run_id(compose())
