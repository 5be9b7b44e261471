import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tepo.common.errors import UserError
from tepo.common.provenance import sessions
from tepo.evaluation.evaluate import evaluate, refresh_verdicts
from tepo.evaluation.responses import ask
from tepo.evaluation.settings import Settings
from tepo.evaluation.writer import EvaluationTask
from tepo.problems.grader import Grader, GraderOptions
from tepo.problems.problem import Problem
from tepo.sampling.sampler import Response
from tepo.store.evaluation_result import load_result
from tepo.store.samples_file import table_of
from tests.support.samplers import Dice, LastBox, Letters, ones
from tests.unit.problems.chats import FAMILIES

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
    for options in ({"seed": 8}, {"policy": {"step": 36}}, {"limit": 3}):
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


def test_a_sampler_is_asked_for_the_filters_of_the_benchmark():
    params = ask(ones(top_p=0.9, top_k=9, min_p=0.1), [], Letters(), Settings()).params
    assert (params.top_p, params.top_k, params.min_p, params.temperature) == (0.9, 9, 0.1, 1.0)


def test_a_system_prompt_identifies_an_evaluation(tmp_path):
    for first, second in (("", "Be brief."), ("Be brief.", ""), ("Be brief.", "Be kind.")):
        folder = tmp_path / f"{first}-{second}"
        run(folder, system=first)
        assert json.loads((folder / "task.json").read_text()).get("system", "") == first
        with pytest.raises(UserError, match="holds another evaluation: system"):
            run(folder, system=second)


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


def test_a_result_of_another_version_is_refused(tmp_path):
    run(tmp_path)
    path = tmp_path / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 0}))
    with pytest.raises(UserError, match="format 0"):
        load_result(tmp_path)


def test_a_problem_may_have_a_tolerance_of_its_own(tmp_path):
    benchmark = ones(tolerances={"one-3": 1.0})
    with Grader(GraderOptions(workers=1)) as grader:
        run(tmp_path, grader=grader, benchmark=benchmark)
        rows = pq.read_table(tmp_path / "samples.parquet").to_pylist()
        assert all(row["correct"] == (row["extracted"] == "1" or row["problem"] == "one-3") for row in rows)
        assert any(row["correct"] and row["extracted"] != "1" for row in rows)
        stale = table_of({**row, "correct": False, "grader": "older"} for row in rows)
        assert refresh_verdicts(benchmark, stale, grader).to_pylist() == rows


class Towers(Dice):
    """One answer in three is a tower of powers that no grader can compute."""

    def _answer(self, draw: float) -> Response:
        text = "\\boxed{9^{9^{9^9}}}" if draw < 1 / 3 else "\\boxed{1}"
        return Response(np.array([*map(ord, text), 0], dtype=np.int32), np.zeros(len(text) + 1), None, True)


def test_answers_that_the_grader_gave_up_are_counted(tmp_path):
    with Grader(GraderOptions(workers=1)) as grader:
        result = run(tmp_path, Towers(), grader, benchmark=ones(4))
    rows = pq.read_table(tmp_path / "samples.parquet").to_pylist()
    assert result.timeouts == sum(row["reason"] == "too much work" for row in rows)
    assert result.timeouts == sum("9" in row["response"] for row in rows) > 0
    assert load_result(tmp_path) == result


def test_a_finished_evaluation_stands_when_the_grader_changes(tmp_path):
    first = run(tmp_path)
    sampler, later = Dice(), LastBox("later", also="2")
    assert run(tmp_path, sampler, later) == first == load_result(tmp_path)
    assert (sampler.asked, later.graded) == ([], 0)
