import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from tepo.analysis.run_result import RunResult
from tepo.common import provenance
from tepo.common.errors import UserError
from tepo.common.provenance import sessions
from tepo.evaluation import regrade as module
from tepo.evaluation.evaluate import evaluate, refresh_verdicts
from tepo.evaluation.regrade import regrade
from tepo.evaluation.responses import ask
from tepo.evaluation.results import conclude, read_result
from tepo.evaluation.scores import score
from tepo.evaluation.settings import Settings
from tepo.evaluation.statistics.samples import AVERAGE, MEAN, summarize
from tepo.evaluation.writer import EvaluationTask
from tepo.problems.benchmarks import Benchmark, load_benchmark
from tepo.problems.grader import Grader, GraderOptions
from tepo.problems.grader.options import REVISION, revision
from tepo.problems.problem import Problem
from tepo.store.evaluation_result import SAMPLES, Result, load_result, save_result
from tepo.store.samples_file import table_of, write_table
from tepo_cli.main import main
from tests.support.answers import compare
from tests.support.answers import samples as rows_of
from tests.support.samplers import Crowd, Dice, LastBox, Letters, ones
from tests.unit.problems.chats import FAMILIES
from tests.unit.store.conftest import own  # noqa: F401 a fixture
from tests.unit.store.test_run_identity import edit, run_of

ONE = [Problem("one", "1=", "1")]


def run(folder: Path, sampler: Dice | None = None, grader: LastBox | None = None, **options):
    task = EvaluationTask(options.pop("benchmark", ones()), grader or LastBox(), folder)
    (result,) = evaluate([task], sampler or Dice(), Letters(), Settings(**{"rows_per_part": 12, "seed": 7} | options))
    return result


def test_one_row_a_sample_with_everything_that_was_seen(tmp_path):
    result = run(tmp_path)
    rows = pq.read_table(tmp_path / "samples.parquet").to_pylist()
    assert [(row["problem"], row["sample"]) for row in rows] == [(f"one-{i}", k) for i in range(20) for k in range(4)]
    for row in rows:
        number, answer = row["response"].rstrip("}").split("\\boxed{")
        assert row["extracted"] == answer
        assert row["correct"] == (answer == "1")
        assert row["prompt"] == row["problem"][4:] + "="
        assert row["finish"] == ("stop" if int(number) < 900 else "length")
        assert row["tokens"] == len(row["response"]) + (row["finish"] == "stop")
        assert row["logprob"] == pytest.approx(-row["tokens"] * int(number) / 1000, abs=1e-3 * row["tokens"])
    assert result.accuracy == np.mean([row["correct"] for row in rows])
    assert result.scores["truncated"] == np.mean([row["finish"] == "length" for row in rows])
    assert result.interval[0] < result.accuracy < result.interval[1]
    assert not (tmp_path / "parts").exists()
    assert [session["sampler"] for session in sessions(tmp_path)] == [Dice.parts]


def test_limit_and_subset_draw_the_same_responses_as_the_whole(tmp_path):
    run(tmp_path / "whole")
    run(tmp_path / "few", limit=5)
    whole, few = (pq.read_table(tmp_path / name / "samples.parquet") for name in ("whole", "few"))
    assert few.num_rows == 20
    assert few.equals(whole.slice(0, 20))


def test_another_evaluation_in_the_folder_is_refused(tmp_path):
    run(tmp_path, policy={"step": 12})
    assert "system" not in json.loads((tmp_path / "task.json").read_text())
    for options in ({"seed": 8}, {"policy": {"step": 36}}, {"limit": 3}, {"system": "Be brief."}):
        sampler = Dice()
        with pytest.raises(UserError, match="holds another evaluation"):
            run(tmp_path, sampler, **{"policy": {"step": 12}} | options)
        assert sampler.asked == []


def test_how_tokens_are_filtered_identifies_an_evaluation(tmp_path):
    """By default nothing of it is in an identity, which is that of what was measured before there were filters."""
    run(tmp_path / "plain")
    assert "draws" not in json.loads((tmp_path / "plain/task.json").read_text())
    for changes in ({"top_p": 0.9}, {"top_k": 9}, {"min_p": 0.1}):
        folder = tmp_path / "".join(changes)
        run(folder, benchmark=ones(**changes))
        assert json.loads((folder / "task.json").read_text())["draws"] == {"temperature": 1.0, **changes}
        for other in ({}, {"top_p": 0.8}):
            with pytest.raises(UserError, match="holds another evaluation"):
                run(folder, benchmark=ones(**other))


def test_a_sampler_is_asked_for_the_filters_of_the_benchmark_and_the_end_of_a_turn():
    tokenizer, benchmark = FAMILIES["base asked by ChatML"]()[0], ones(prompt="boxed", top_p=0.9, top_k=9, min_p=0.1)
    params, end = ask(benchmark, ONE, tokenizer, Settings()).params, tokenizer.convert_tokens_to_ids("<|im_end|>")
    drawn = params.top_p, params.top_k, params.min_p, params.temperature, params.stop
    assert drawn == (0.9, 9, 0.1, 1.0, (end,))


def test_a_problem_is_asked_with_its_own_system_prompt_and_a_raw_one_with_none():
    tokenizer, settings = FAMILIES["base asked by ChatML"]()[0], Settings(system="Be kind.")
    problems = [ONE[0], replace(ONE[0], system="Be strict.")]
    told = tokenizer.batch_decode(settings.encode(ones(prompt="boxed"), problems, tokenizer).tokens)
    assert [text.split("\n")[1] for text in told] == ["Be kind.<|im_end|>", "Be strict.<|im_end|>"]
    raw = [form.encode(ones(), ONE, tokenizer).tokens for form in (settings, Settings())]
    assert raw[0] == raw[1]


def test_a_protocol_chooses_the_mode_of_a_model_that_thinks():
    tokenizer = FAMILIES["ChatML that thinks"]()[0]
    asked = {
        (mode, chosen): Settings(thinking=chosen).encode(ones(prompt="boxed", thinking=mode), ONE, tokenizer).tokens
        for mode, chosen in ((None, True), (None, False), (True, None), (False, None), (False, False))
    }
    assert asked[True, None] == asked[None, True] != asked[None, False] == asked[False, None] == asked[False, False]
    for mode, chosen, word in ((True, False, "--thinking"), (False, True, "--no-thinking")):
        with pytest.raises(UserError, match=f"ones takes {word}, and the other mode is chosen"):
            Settings(thinking=chosen).encode(ones(prompt="boxed", thinking=mode), ONE, tokenizer)


def test_a_grader_that_changed_between_kill_and_resume_judges_every_row(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Dice(10), LastBox("old"))
    result = run(tmp_path, grader=LastBox("new", also="2"))
    rows = pq.read_table(tmp_path / "samples.parquet").to_pylist()
    assert {row["grader"] for row in rows} == {"new"} == {result.grader}
    assert all(row["correct"] for row in rows if row["extracted"] in "12")


def test_a_problem_may_have_a_tolerance_of_its_own(tmp_path):
    benchmark = ones(tolerances={"one-3": 1.0})
    with Grader(GraderOptions(workers=1)) as grader:
        run(tmp_path, grader=grader, benchmark=benchmark)
        rows = pq.read_table(tmp_path / "samples.parquet").to_pylist()
        assert all(row["correct"] == (row["extracted"] == "1" or row["problem"] == "one-3") for row in rows)
        assert any(row["correct"] and row["extracted"] != "1" for row in rows)
        stale = table_of({**row, "correct": False, "grader": "older"} for row in rows)
        assert refresh_verdicts(benchmark, stale, grader).to_pylist() == rows


def test_a_finished_evaluation_stands_when_the_grader_changes(tmp_path):
    first = run(tmp_path)
    sampler, later = Dice(), LastBox("later", also="2")
    assert run(tmp_path, sampler, later) == first == load_result(tmp_path)
    assert (sampler.asked, later.graded) == ([], 0)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "load_benchmark", lambda name: ones())
    task = EvaluationTask(ones(), LastBox(), tmp_path / "run" / "eval" / "ones")
    evaluate([task], Dice(), Letters(), Settings(seed=1))
    return tmp_path / "run" / "eval" / "ones"


def test_flips_are_those_rows_whose_verdict_changed(folder):
    before = pq.read_table(folder / "samples.parquet").to_pylist()
    found = regrade(folder, LastBox("later", also="2"))
    expected = [(row["problem"], row["sample"]) for row in before if row["extracted"] == "2"]
    assert [(flip.problem, flip.sample) for flip in found.flips] == expected
    assert expected
    assert all(flip.correct and flip.reason_before == "different" for flip in found.flips)
    after, result = pq.read_table(folder / "samples.parquet").to_pylist(), load_result(folder)
    assert result.accuracy == found.after == sum(row["extracted"] in "12" for row in before) / 80
    assert [row["response"] for row in after] == [row["response"] for row in before]
    assert {row["grader"] for row in after} == {"later"}
    assert [session["what"] for session in provenance.sessions(folder)] == ["evaluate", "regrade"]


def test_a_result_of_an_earlier_revision_is_judged_anew(folder):
    """Verdicts of revision 7, which took the right side of a curve for the curve; a resumed evaluation finds the same
    rows outdated."""
    earlier = f"grader 7 options 1234abcd {GraderOptions().fingerprint().partition('math-verify')[2]}"
    rows = pq.read_table(folder / "samples.parquet").to_pylist()
    rows = [{**row, "grader": earlier, "reason": "exact", "correct": True} for row in rows]
    rows[0] |= {"gold": "y^2=4x", "response": r"\boxed{4x}"}
    rows[1] |= {"gold": "y=4x", "response": r"\boxed{4x}"}
    write_table(folder / "samples.parquet", table_of(rows))
    save_result(folder, replace(load_result(folder), grader=earlier))
    with Grader() as grader:
        again = refresh_verdicts(ones(), table_of(rows), grader)
        found = regrade(folder, grader)
    assert [(flip.gold, flip.correct) for flip in found.flips[:1]] == [("y^2=4x", False)]
    table = pq.read_table(folder / "samples.parquet")
    assert table["correct"].to_pylist()[:2] == again["correct"].to_pylist()[:2] == [False, True]
    assert set(table["grader"].to_pylist()) == set(again["grader"].to_pylist()) == {load_result(folder).grader}
    assert (revision(load_result(folder).grader), revision(earlier), revision("later")) == (REVISION, 7, None)


def test_a_dry_run_writes_nothing_and_the_same_grader_flips_nothing(folder):
    files = {path: path.read_bytes() for path in folder.iterdir()}
    assert regrade(folder, LastBox("later", also="2"), write=False).flips
    assert regrade(folder, LastBox()).flips == []
    assert {path: path.read_bytes() for path in folder.iterdir()} == files


BENCHMARKS = [
    replace(ones(30, 4), name="some"),
    replace(ones(25, 1), name="single", temperature=0.5),
    replace(ones(7, 9), name="many", max_new_tokens=64),
]


def measured(folder: Path, sampler: Dice, benchmarks: list[Benchmark] = BENCHMARKS) -> list[Result]:
    tasks = [EvaluationTask(one, LastBox(), folder / one.name) for one in benchmarks]
    return evaluate(tasks, sampler, Letters(), Settings(seed=7, rows_per_part=12))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each benchmark by itself, one slice after another."""
    folder = tmp_path_factory.mktemp("alone")
    for one in BENCHMARKS:
        measured(folder, Dice(), [one])
    return folder


def same(folder: Path, other: Path) -> None:
    for one in BENCHMARKS:
        for file in ("samples.parquet", "result.json", "task.json"):
            assert (folder / one.name / file).read_bytes() == (other / one.name / file).read_bytes()
        assert not (folder / one.name / "parts").exists()


@pytest.mark.parametrize("side_by_side", [1, 10, 1000])
def test_the_same_files_whatever_ends_first(tmp_path: Path, alone: Path, side_by_side: int) -> None:
    for seed in range(2):
        crowd = Crowd(side_by_side, seed)
        assert [result.benchmark for result in measured(tmp_path / str(seed), crowd)] == ["some", "single", "many"]
        same(tmp_path / str(seed), alone)
        assert sorted(crowd.asked) == sorted(f"{index}=" for one in BENCHMARKS for index in range(one.count))


def test_stopped_again_and_again_it_asks_only_for_what_is_missing(tmp_path: Path, alone: Path) -> None:
    calls = 0
    while True:
        try:
            measured(tmp_path, Crowd(20, calls, stop_after=9))
            break
        except KeyboardInterrupt:
            calls += 1
        assert calls < 20, "what had ended was lost"
    assert calls > 3
    same(tmp_path, alone)


def test_what_a_slice_at_a_time_began_is_finished_in_any_order(tmp_path: Path, alone: Path) -> None:
    """And the other way round."""
    for folder, first, then in (
        (tmp_path / "one", Dice(20), Crowd(16, 0)),
        (tmp_path / "other", Crowd(16, 0, 20), Dice()),
    ):
        with pytest.raises(KeyboardInterrupt):
            measured(folder, first)
        measured(folder, then)
        same(folder, alone)
        assert len(then.asked) < 62


def test_a_part_holds_what_has_ended_and_a_damaged_one_is_sampled_again(tmp_path: Path, alone: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path, Crowd(20, 3, stop_after=40))
    parts = sorted(tmp_path.glob("*/parts/*.parquet"))
    assert len(parts) > 5
    for part in parts[::2]:
        part.write_bytes(part.read_bytes()[:-20])
    measured(tmp_path, Crowd(20, 4))
    same(tmp_path, alone)


def twelve() -> object:
    """Twelve problems, four samples each, the first c of which are right at problem c."""
    return table_of([
        {"problem": f"p{p:02}", "sample": k, "extracted": str(k), "correct": k < p % 5, "reason": "", "tokens": 10 + k,
         "finish": "length" if k == p == 3 else "stop", "grader": "g"}
        for p in range(12) for k in range(4)
    ])  # fmt: skip


@pytest.fixture
def quoted(tmp_path: Path) -> Path:
    """A finished evaluation with a subset of half of its problems."""
    table = twelve()
    write_table(tmp_path / SAMPLES, table)
    half = {"half": score(table.slice(0, 24))}
    save_result(tmp_path, replace(conclude("mine", None, table, "g", {}), subsets=half))
    return tmp_path


def with_half() -> object:
    part = SimpleNamespace(without=tuple(f"p{p:02}" for p in range(6, 12)))
    return replace(load_benchmark("add3"), name="mine", subsets={"half": part})


def test_what_is_quoted_is_what_the_samples_give(quoted: Path) -> None:
    first = read_result(quoted, with_half())
    assert json.loads(json.dumps(asdict(first))) == json.loads((quoted / "result.json").read_text())
    # computed anew
    edit(quoted / "result.json", lambda held: held.update(interval=[0.0, 1.0]))
    edit(quoted / "result.json", lambda held: held["subsets"].update(other=held["scores"]))
    assert read_result(quoted, with_half()) == first
    assert set(first.subsets) == {"half"}
    assert read_result(quoted / "nowhere") is None


NAMES = [f"{kind}@{k}" for kind, k in (("avg", 4), ("pass", 2), ("pass", 4), ("maj", 4))] + ["truncated", "mean_tokens"]


@pytest.mark.parametrize("where", ["scores", "half"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0.123, float("nan"), None])
def test_no_other_number_is_quoted(value: object, name: str, where: str, quoted: Path) -> None:
    edit(quoted / "result.json", lambda held: {**held, **held["subsets"]}[where].update({name: value}))
    with pytest.raises(UserError, match=r"damaged|not a result of this version|its samples give") as caught:
        read_result(quoted, with_half())
    assert caught.value.where == str(quoted / "result.json")


@pytest.mark.parametrize("change", [{"accuracy": 0.9}, {"problems": 6}, {"timeouts": 1}, {"grader": "of today"}])
def test_nor_are_other_facts(change: dict, quoted: Path) -> None:
    edit(quoted / "result.json", lambda held: held.update(change))
    with pytest.raises(UserError, match=r"not those behind|damaged"):
        read_result(quoted)


@pytest.mark.usefixtures("own")
def test_every_command_that_quotes_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = run_of(tmp_path / "store")
    edit(unit.folder.path / "eval" / "add3" / "result.json", lambda held: held.update(accuracy=0.99))
    with pytest.raises(UserError):
        RunResult(unit.folder.path).scores()
    for code, words in (
        (2, ["eval", "-m", unit.id, "add3"]),
        (2, ["train", *unit.overrides, "--evaluate", "--quiet"]),
        (1, ["doctor", "--no-selftest"]),
    ):
        monkeypatch.setattr(sys, "argv", ["tepo", *words, "--store", str(tmp_path / "store")])
        with pytest.raises(SystemExit) as ended:
            main()
        said = "".join(capsys.readouterr())
        assert (ended.value.code, "not those behind" in said, "99.0" in said) == (code, True, False), words


@pytest.mark.parametrize(("seeds", "problems", "per_problem"), [(1, 10, 1), (2, 12, 3), (3, 13, 2)])
def test_any_order_of_the_lines_gives_the_same_bits(seeds: int, problems: int, per_problem: int) -> None:
    chances, benchmarks = {"one": 0.4, "two": 0.6}, ("c", "b", "a")
    frame = rows_of(chances, seeds=seeds, problems=problems, per_problem=per_problem, benchmarks=benchmarks)
    shuffled = frame.sample(frac=1, random_state=seeds)
    one, two = (
        summarize(given, draws=50).sort_values(["row", "benchmark"], ignore_index=True) for given in (frame, shuffled)
    )
    pd.testing.assert_frame_equal(one, two, check_exact=True)
    on = ("a", "b", "c", AVERAGE, MEAN)
    assert repr(compare(frame, "one", on)) == repr(compare(shuffled, "one", on))


@pytest.mark.parametrize("per_problem", [1, 5])
def test_a_finished_evaluation_and_a_table_have_the_same_interval(per_problem: int) -> None:
    """Ten problems or more: `ones-10` sorts before `ones-2`, and the file holds it after."""
    frame = rows_of({"one": 0.4}, seeds=1, problems=12, per_problem=per_problem, benchmarks=("ones",))
    line = summarize(frame).set_index("benchmark").loc["ones"]
    filled = frame.assign(extracted=frame["sample"].astype(str), correct=frame["right"] > 0, finish="stop", tokens=7)
    for rows in (filled, filled.sample(frac=1, random_state=np.random.RandomState(1))):
        result = conclude("ones", ones(12, per_problem), table_of(rows.to_dict("records")), "grader", {})
        assert (result.accuracy, result.interval) == (line["mean"], (line["low"], line["high"]))
