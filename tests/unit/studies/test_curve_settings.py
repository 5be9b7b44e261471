"""`curve:` of a study: what is refused before anything is trained, and what is read from a run."""

import json
from pathlib import Path

import numpy as np
import pytest

from tepo.common.errors import UserError
from tepo.results.scaling_fits import read_run
from tepo.studies.plan import Unit, make_plan
from tepo.studies.study import CurveSettings, Study, parse_study

STUDY = (
    "title: x\nbaseline: a\ncurve: %s\nrows:\n  - {label: a, objective: grpo_dapo}\n"
    "scales:\n  laptop: {models: [laptop], seeds: [0], overrides: [train.steps=24, train.validate_every=%d]}\n"
)


def study(tmp_path: Path, curve: str = "{margin: 2}", every: int = 2) -> Study:
    (tmp_path / "mine.yaml").write_text(STUDY % (curve, every))
    return parse_study(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("curve", "what"),
    [
        ("{margin: 2, over: sample}", "unknown curve.over 'sample'"),
        ("{over: steps}", "curve.margin is missing"),
        ("{margin: 0}", "curve.margin must be positive"),
        ("{margin: 2, factor: 1}", "curve.factor must be above 1"),
        ("{margin: 2, share: 1}", "curve.share must be below 1"),
        ("{margin: 2, after: 0.5}", "curve.after must be below 0.5"),
        ("{margin: 2, start: base}", "unknown curve.start 'base'"),
        ("{margin: 2, from: 0.1}", "unknown key 'curve.from'"),
    ],
)
def test_a_mistake_names_file_line_and_key(curve: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        study(tmp_path, curve)
    assert what in caught.value.what
    assert "mine.yaml:3" in caught.value.where


def test_curves_are_compared_with_a_baseline(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text((STUDY % ("{margin: 2}", 2)).replace("baseline: a\n", ""))
    with pytest.raises(UserError, match="compares rows with a baseline"):
        parse_study(tmp_path / "mine.yaml")


def test_too_few_validations_are_refused_before_training(tmp_path: Path) -> None:
    assert make_plan(study(tmp_path), "laptop", store=tmp_path)
    with pytest.raises(UserError, match="needs 12 validations of a run or more, and a has 8") as caught:
        make_plan(study(tmp_path, every=3), "laptop", store=tmp_path)
    assert "train.validate_every=2" in caught.value.fix
    with pytest.raises(UserError, match="and a has 0"):
        make_plan(study(tmp_path, every=0), "laptop", store=tmp_path)
    with pytest.raises(UserError, match="and a has 10"):
        make_plan(study(tmp_path, "{margin: 2, after: 0.2}"), "laptop", store=tmp_path)


def _row(step: int, right: list[int]) -> dict[str, object]:
    share = sum(right) / (4 * len(right))
    measured = {"val-core/average": share, "val-aux/b/right@4": right} if step % 2 == 0 else {}
    return {"training/global_step": step, "training/responses": 10.0 * step, "perf/cpu_core_s": 2.0, **measured}


@pytest.fixture
def unit(tmp_path: Path) -> Unit:
    """A run of six steps, validated after every other one."""
    (unit,) = make_plan(study(tmp_path), "laptop", store=tmp_path)
    rows = [_row(step, [step % 5, 4]) for step in range(1, 7)]
    rows[0] |= {"start/val-core/average": 0.25, "start/val-aux/b/right@4": [0, 2]}
    unit.folder.mkdir()
    (unit.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return unit


@pytest.mark.parametrize(
    ("settings", "compute"),
    [
        (CurveSettings(2), [20, 40, 60]),
        (CurveSettings(2, "steps"), [2, 4, 6]),
        (CurveSettings(2, "cpu"), [4, 8, 12]),
        (CurveSettings(2, after=0.4), [40, 60]),
    ],
    ids=["samples", "steps", "cpu", "after"],
)
def test_scores_are_read_over_what_was_asked(unit: Unit, settings: CurveSettings, compute: list[float]) -> None:
    run = read_run(unit, settings)
    assert run.curve.compute.tolist() == compute
    assert run.curve.start == 0.25
    assert run.curve.scores.tolist() == [0.75, 1.0, 0.625][-len(compute) :]
    (shares,) = run.problems.values()
    assert shares.tolist() == [[0, 0.5], *[[0.5, 1], [1, 1], [0.25, 1]][-len(compute) :]]
    assert np.allclose(shares[1:].mean(axis=1), run.curve.scores)


def test_a_fitted_start_is_not_read(unit: Unit) -> None:
    assert read_run(unit, CurveSettings(2, start="fitted")).curve.start is None


def test_a_run_of_an_earlier_version_is_named(unit: Unit) -> None:
    rows = [json.loads(line) for line in (unit.folder / "metrics.jsonl").read_text().splitlines()]
    kept = [{key: value for key, value in row.items() if "val-aux" not in key} for row in rows]
    (unit.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    with pytest.raises(UserError, match="does not hold its validation problem by problem"):
        read_run(unit, CurveSettings(2))
