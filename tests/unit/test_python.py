"""The Python interface: what it costs to import, what it refuses, and what it gives back."""

import json
from pathlib import Path

import pytest

import tepo
from tests.support.commands import alone, python

HEAVY = ["torch", "pandas", "numpy", "rich", "hydra", "transformers", "yaml"]


def test_import_is_instant() -> None:
    code = f"import sys, tepo; dir(tepo); print([name for name in {HEAVY} if name in sys.modules])"
    assert python("-c", code).stdout == "[]\n"


def test_every_name_is_there_and_in_the_stub() -> None:
    stub = (Path(tepo.__file__).parent / "__init__.pyi").read_text()
    names = {name for name in dir(tepo) if f" as {name}\n" in stub}
    assert names >= {"run", "train", "grade", "load_objective", "StudyResult", "RunResult", "UserError"}
    assert names == set(tepo._WHERE)
    assert all(getattr(tepo, name).__doc__ for name in names)
    with pytest.raises(AttributeError, match="'tepo' has no attribute 'runn'"):
        tepo.runn  # noqa: B018


def test_rows_are_graded_as_the_command_does(tmp_path: Path) -> None:
    rows = [
        {"gold": "1/2", "prediction": "so it is \\boxed{0.5}"},
        {"gold": 3, "prediction": 3.0},
        {"gold": "7", "prediction": None},
        {"gold": "7", "prediction": "The answer is 8."},
    ]
    verdicts = tepo.grade(rows)
    assert [one.correct for one in verdicts] == [True, True, False, False]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = alone("data", "grade", tmp_path / "rows.jsonl")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["verdict"], line["reason"], line["extracted"]) for line in lines] == [
        (one.correct, one.reason, one.extracted) for one in verdicts
    ]


def test_a_row_that_cannot_be_graded_is_named() -> None:
    for row in ({"gold": "1"}, "1", {"gold": [1], "prediction": ""}):
        with pytest.raises(tepo.UserError, match=r"\nin: row 1"):
            tepo.grade([{"gold": "1", "prediction": "1"}, row])  # type: ignore[list-item]


def test_mistakes_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(tepo.UserError, match="did you mean 'panel_e'"):
        tepo.run("panel_ee", store=tmp_path)
    with pytest.raises(tepo.UserError, match=r"overrides=\['seed=3'\]"):
        tepo.train("seed=3", store=tmp_path)
    with pytest.raises(tepo.UserError, match="study is no text: 5"):
        tepo.results(5)  # type: ignore[arg-type]
    with pytest.raises(tepo.UserError, match="overrides is no list of texts: 5"):
        tepo.train(5)  # type: ignore[arg-type]
    with pytest.raises(tepo.UserError, match=r"did you mean 'train\.steps'"):
        tepo.train(steps=3, store=tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_is_known_of_a_study_is_frames_and_prints_as_one_screen(tmp_path: Path) -> None:
    for study, seeds, runs in (("stability", [0, 1, 2], 180), ("table3", [0], 26)):
        result = tepo.results(study, seeds=seeds, store=tmp_path / "runs")
        assert (len(result.runs), set(result.runs["source"]) <= {"record", ""}) == (runs, True)
        assert len(repr(result).splitlines()) <= 24
        measured = result.scores.groupby("run", observed=True)[["right", "samples"]].sum()
        row = result.table.dropna(subset="average").iloc[0]
        right = measured.loc[row["runs"]].sum()
        assert row["average"] == pytest.approx(100 * right["right"] / right["samples"])
        assert set(result.curves["run"]) == set(measured.index) - {run for run in measured.index if "base" in run}
    assert tepo.results("panel_e", store=tmp_path / "runs", records=False).scores.empty
