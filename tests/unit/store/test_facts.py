import os
import time
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tepo.config.compose import compose
from tepo.reporting.charts.curves import TRAINING_PANELS, curve_frame
from tepo.store.evaluation_result import RightAnswers
from tepo.store.facts import Facts, Known, curves_of, facts_from, joined_curves, joined_scores, scores_of, thinned
from tepo.store.live_runs import RECENT, SILENT, live_runs
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import identity


def test_a_run_that_one_study_tunes_with_and_another_measures_is_done_for_each_by_itself() -> None:
    known = vars(Known("store", finished=True))
    facts = facts_from([{"run": "a", "tuning": tuning, "done": tuning, **known} for tuning in (True, False)], [], [])
    assert [facts.of(("a", tuning)).done for tuning in (True, False)] == [True, False]
    assert facts.of("a").finished
    with pytest.raises(KeyError):
        facts.of("b")


def test_scores_and_curves_are_of_their_run_and_benchmark() -> None:
    runs, scores = [], []
    for run, right in (("a", (4, 0)), ("b", (1, 2))):
        runs.append({"run": run, "tuning": False, **vars(Known("record"))})
        scores.append(scores_of(run, "add3", RightAnswers(("p1", "p2"), right, 4), f"by {run}", "{}", 3))
    steps = [{"training/global_step": 1, "x": 0.5}, {"training/global_step": 2}]
    facts = facts_from(runs, scores, [curves_of("b", steps)])
    assert facts.right("b", "add3") == RightAnswers(("p1", "p2"), (1, 2), 4)
    assert (facts.measurement("a", "add3").grader, facts.measurement("a", "add3").timeouts) == ("by a", 3)
    assert (facts.has("a", "add3"), facts.has("a", "gcd"), facts.right("a", "gcd")) == (True, False, None)
    assert (facts.metrics("a"), facts.metrics("b")) == ([], steps)


def metrics(steps: int, validate_every: int = 5) -> list[dict]:
    rows = []
    for step in range(1, steps + 1):
        row = {"training/global_step": step, "training/responses": 608.0 * step, "perf/cpu_s": 0.9 + 0.0123 * step}
        row |= {"actor/realised_kl_k3": 0.00123456 / step, "rollout/prompts": 77.0, "actor/clip_low_over_sd": 2.0}
        row |= {panel.metric: 1 / (3 + step) for panel in TRAINING_PANELS}
        row |= {f"critic/score/best@{size}": 0.8 - 1 / (size + step) for size in (2, 4, 8)}
        if step % validate_every == 0:
            row |= {"val-core/add3/acc/mean@4": step / 3000, "val-core/average": step / 7000}
        rows.append(row)
    return rows


def positions(rows: list[dict], against: str) -> list[float]:
    """Where the steps of a run lie on an axis."""
    own = {"method": "a", "seed": 0, "run": "r", "ended": False}
    return curve_frame(pd.DataFrame(rows).assign(**own), against=against)["at"].tolist() if rows else []


@pytest.mark.parametrize("steps", [0, 1, 119, 432])
def test_validation_and_sums_are_there_at_every_step(steps: int) -> None:
    rows = metrics(steps)
    back = thinned(rows)
    assert [row["training/global_step"] for row in back] == list(range(1, steps + 1))
    for old, new in zip(rows, back, strict=True):
        wanted = {name: value for name, value in old.items() if name.startswith("val-core/")}
        assert {name: value for name, value in new.items() if name.startswith("val-core/")} == wanted  # exact
        assert new["training/responses"] == old["training/responses"]
    for name in ("perf/cpu_s", "actor/realised_kl_k3"):
        assert sum(row[name] for row in back) == pytest.approx(sum(row[name] for row in rows), rel=0.05)  # two digits
    for against in ("samples", "kl"):
        assert positions(back, against) == pytest.approx(positions(rows, against), rel=0.05)


@pytest.mark.parametrize("steps", [1, 36, 432])
def test_what_is_drawn_is_there_at_as_many_steps_as_can_be_seen(steps: int) -> None:
    rows = metrics(steps)
    back = thinned(rows)
    for panel in TRAINING_PANELS:
        drawn = {row["training/global_step"]: row[panel.metric] for row in back if panel.metric in row}
        assert min(steps, 60) <= len(drawn) <= 120
        assert {1, steps} <= set(drawn)
        for step, value in drawn.items():
            assert value == pytest.approx(rows[step - 1][panel.metric], rel=0.06)
    assert {name for row in back for name in row if "best@" in name} == {"critic/score/best@4", "critic/score/best@8"}


NAMES = [*dict.fromkeys(name for row in metrics(5) for name in row), "start/val-core/x"][1:]
VALUES = st.one_of(st.floats(allow_nan=False), st.integers(-(10**9), 10**9))


@given(st.integers(0, 200), st.dictionaries(st.sampled_from(NAMES), VALUES), st.data())
def test_what_is_thin_stays_as_it_is_and_goes_through_a_frame(steps: int, shared: dict, data: st.DataObject) -> None:
    """Else what is decided by a record could be another thing than what is decided by its run."""
    rows = [{"training/global_step": step, **shared} for step in range(1, steps + 1)]
    for place in data.draw(st.lists(st.sampled_from(range(steps)), max_size=5)) if steps else ():
        rows[place] |= data.draw(st.dictionaries(st.sampled_from(NAMES), VALUES))
    once = thinned(rows)
    assert thinned(once) == once
    if steps:
        curves = joined_curves([curves_of("r", once)])
        assert Facts(curves, joined_scores([]), curves).metrics("r") == once


def run(store: Path, seed: int, status: str, steps: int, age: float = 0.0) -> RunFolder:
    config = compose(["scale=laptop", "objective=tepo", "train.steps=8", f"seed={seed}", f"store={store}"])
    folder = RunFolder.of(config)
    folder.create(config, identity(config))
    for step in range(1, steps + 1):
        folder.append_metrics({"training/global_step": step, "critic/score/mean": step / 4, "timing_s/step": 2.0})
    folder.mark(status)
    for file in folder.path.iterdir():
        os.utime(file, (time.time() - age, time.time() - age))
    return folder


def test_runs_that_train_come_with_their_figures_and_those_that_stopped_writing_are_silent(tmp_path: Path) -> None:
    """One that is just being written is left out."""
    first, second = run(tmp_path, 0, "running", 3, age=10), run(tmp_path, 1, "finished", 8, age=60)
    run(tmp_path, 2, "finished", 8, age=2 * RECENT)
    run(tmp_path, 3, "running", 1, age=SILENT + 600)
    half = run(tmp_path, 4, "running", 1)
    half.config_file.write_text(half.config_file.read_text()[:100])
    first.metrics_file.write_bytes(first.metrics_file.read_bytes()[:-10])
    os.utime(first.metrics_file, (time.time() - 10, time.time() - 10))
    one, other, still = live_runs(tmp_path)
    assert (one.id, one.status, one.step, one.steps) == (first.path.name, "running", 2, 8)
    assert (one.reward, one.left) == (0.5, 12.0)
    assert (other.id, other.status, other.left) == (second.path.name, "finished", None)
    assert (still.status, still.left) == ("silent for 25 min", None)
    assert live_runs(tmp_path / "nowhere") == []
