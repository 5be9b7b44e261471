from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from tepo.common import provenance
from tepo.common.errors import UserError
from tepo.evaluation import regrade as module
from tepo.evaluation.evaluate import evaluate, refresh_verdicts
from tepo.evaluation.regrade import evaluations, regrade
from tepo.evaluation.settings import Settings
from tepo.evaluation.writer import EvaluationTask
from tepo.problems.grader import Grader, GraderOptions
from tepo.problems.grader.options import REVISION, revision
from tepo.store.evaluation_result import load_result, save_result
from tepo.store.samples_file import table_of, write_table
from tests.support.samplers import Dice, LastBox, Letters, ones


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


def test_evaluations_are_found_below_a_run(folder, tmp_path):
    assert evaluations(tmp_path / "run") == evaluations(folder) == [folder]
    with pytest.raises(UserError, match="no finished evaluation"):
        evaluations(tmp_path / "nothing")


def test_a_damaged_table_is_one_clear_message(folder):
    (folder / "samples.parquet").write_bytes(b"PAR1 half")
    with pytest.raises(UserError, match="not a readable Parquet file"):
        regrade(folder, LastBox())
