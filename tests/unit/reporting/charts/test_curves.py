import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tepo.reporting.charts.curves import AXES, curve_frame, ends, training_curves
from tepo.reporting.charts.style import Chart, Looks, specification
from tests.unit.reporting.charts.drawing import LABELS, marks, said, unread

REWARD, ENTROPY, LENGTH, TOKENS = "critic/score/mean", "actor/entropy", "response_length/mean", "perf/sampled_tokens"
SAMPLES, SECONDS, KL = "training/responses", "timing_s/step", "actor/realised_kl_k3"
LOOKS: Looks = {"a": ("tepo", None), "b": ("grpo_dapo", None), "c": ("tepo_no_kl", None), "d": ("gspo", None)}


def run(method: str, seed: int, rewards: Sequence[Any], ended: bool = False, **more: Any) -> pd.DataFrame:
    """more: metrics, a number or one a step."""
    steps = pd.DataFrame({"training/global_step": range(1, len(rewards) + 1), REWARD: list(rewards)})
    return steps.assign(method=method, seed=seed, run=f"{method}-{seed}", ended=ended, **more)


def chart(*runs: pd.DataFrame, against: str = "steps", **more: Any) -> Chart:
    frame = curve_frame(pd.concat(runs, ignore_index=True), against=against)
    looks = {label: LOOKS.get(label, ("tepo", None)) for label in frame["method"]}
    return training_curves(frame, looks, against=against, **more)


def lines(made: Chart, panel: int = 0, x: str = AXES["steps"], faint: bool = False) -> dict[str, list[tuple[Any, Any]]]:
    """Method, of a faint line its run, -> points, as their tooltips say them."""
    found = {}
    for words in (
        [said(item) for item in line] for line in marks(made, "line", panel) if (line[0]["strokeWidth"] < 2) is faint
    ):
        (y,) = words[0].keys() - {x, "method", "run", "seed"}
        found[words[0]["run" if faint else "method"]] = [(float(one[x]), float(one[y])) for one in words]
    return found


def test_a_mean_stands_only_where_all_seeds_have_the_step() -> None:
    single = run("b", 0, [0.5, None, 0.7])
    made = chart(run("a", 0, [0.1, 0.2, 0.3]), run("a", 1, [0.3, 0.6]), single)
    assert lines(made) == {"a": [(1, 20), (2, 40)], "b": [(1, 50), (3, 70)]}
    seeds = {"a-0": [(1, 10), (2, 20), (3, 30)], "a-1": [(1, 30), (2, 60)], "b-0": [(1, 50), (3, 70)]}
    assert lines(made, faint=True) == seeds
    hole = chart(run("a", 0, [0.1, math.nan, 0.3]), run("a", 1, [0.3, 0.6, math.inf]), run("a", 2, [0.2, 0.2, 0.2]))
    assert lines(hole) == {"a": [(1, 20)]}
    assert lines(chart(single)) == {"b": [(1, 50), (3, 70)]}, "one seed is enough"


@pytest.mark.parametrize("against", ["steps", "tokens"])
def test_steps_that_lie_close_to_each_other_are_not_taken_for_one(against: str) -> None:
    made = chart(*(run("a", seed, [0.5] * 1500, **{TOKENS: [9000] + [1] * 1499}) for seed in (0, 1)), against=against)
    assert (
        len({row["at"] for row in specification(made)["datasets"]["runs"]})
        == len(lines(made, x=AXES[against])["a"])
        == 1500
    )


@pytest.mark.parametrize(
    ("against", "places"),
    [
        ("steps", [1, 2, 3]),
        ("samples", [150, 350, 500]),
        ("tokens", [15, 30, 50]),
        ("time", [2, 4.5, 8]),
        ("kl", [0.2, 0.45, 0.75]),
    ],
)
def test_a_step_lies_at_the_mean_of_its_seeds_places(against: str, places: list[float]) -> None:
    one = {SAMPLES: [100, 400], TOKENS: [10, 10], SECONDS: 2.0, KL: [0.1, 0.2]}
    lacking = {name: [1.0, None] for name in (SAMPLES, TOKENS, SECONDS, KL)}
    other = {SAMPLES: [200, 300, 500], TOKENS: [20, 20, 10], SECONDS: [2.0, 3.0, 3.0], KL: [0.3, 0.3, 0.15]}
    steps = pd.concat(
        [
            run("a", 0, [0.4, 0.2], True, **one),
            run("a", 1, [0.4, 0.6, 0.8], **other),
            run("old", 0, [0.5, 0.5], **lacking),
        ]
    )
    frame = curve_frame(steps.reset_index(drop=True), against=against)
    assert frame["at"][:5].tolist() == pytest.approx([*places[:2], *places])
    assert ("old" in set(frame["method"])) is (against == "steps"), "a run that lacks the axis is left out"
    made = training_curves(frame, LOOKS | {"old": ("grpo", None)}, against=against)
    assert lines(made, x=AXES[against])["a"] == [(pytest.approx(place), 40) for place in places[:2]]


@pytest.mark.parametrize("count", [200, 401, 1000])
def test_long_curves_keep_their_shape_and_their_sums(count: int) -> None:
    rewards = np.linspace(0, 1, count)
    every = pd.concat(
        [run("a", 0, rewards, **{SECONDS: 2.0}), run("a", 1, rewards[: count // 2], True, **{SECONDS: 2.0})]
    )
    frame = curve_frame(every.reset_index(drop=True), against="time", points=200)
    long, short = (part for _, part in frame.groupby("run"))
    assert (len(long) <= 200, long["step"].iloc[-1], long["at"].iloc[-1]) == (True, count, pytest.approx(2 * count))
    assert short["step"].tolist()[:-1] == long["step"].tolist()[: len(short) - 1]
    assert short["last"].tolist() == [False] * (len(short) - 1) + [True]
    assert long["reward"].to_numpy() == pytest.approx(100 * rewards[long["step"] - 1], abs=1)


def test_ends_are_means_at_the_last_step() -> None:
    runs = [run("a", 0, [0.1, 0.2]), run("a", 1, [0.3, 0.5], **{LENGTH: [1.0, 1234.0]}), run("b", 0, [0.1, None])]
    found = ends(curve_frame(pd.concat(runs, ignore_index=True))).to_numpy().tolist()
    assert found == [["a", "35", "1230"], ["b", "10", "–"]]


@pytest.mark.parametrize("width", [355, 760])
def test_every_label_is_read_in_full(width: int) -> None:
    for labels in (LABELS[:6], LABELS[6:]):
        assert unread(chart(*(run(label, 0, [0.1, 0.2]) for label in labels)), labels, width) == []
