"""Training curves: seed bands, holes in the data, files, and one look per method."""

import math
import re
from itertools import combinations
from pathlib import Path

import numpy as np

import tepo
from tepo.reporting import colours
from tepo.reporting.figures.curves import (
    STEP,
    TRAINING_PANELS,
    RunCurves,
    save,
    seed_band,
    series,
    svg,
    training_figure,
)


def run(label: str, method: str, seed: int, values: list[float | None], metric: str = "critic/score/mean") -> RunCurves:
    return RunCurves(label, method, seed, [{STEP: step, metric: value} for step, value in enumerate(values, start=1)])


def test_series_leaves_out_what_is_missing_or_not_finite() -> None:
    steps, values = series(run("a", "tepo", 0, [0.1, None, math.nan, 0.4]), "critic/score/mean")
    assert steps.tolist() == [1, 4]
    assert values.tolist() == [0.1, 0.4]
    assert series(run("a", "tepo", 0, [0.1]), "actor/entropy")[0].size == 0


def test_band_spans_the_seeds_at_the_steps_they_share() -> None:
    runs = [run("a", "tepo", 0, [0.1, 0.2, 0.3]), run("a", "tepo", 1, [0.3, 0.6]), run("a", "tepo", 2, [])]
    steps, mean, low, high = seed_band(runs, "critic/score/mean")
    assert steps.tolist() == [1, 2]
    np.testing.assert_allclose(mean, [0.2, 0.4])
    np.testing.assert_allclose(low, [0.1, 0.2])
    np.testing.assert_allclose(high, [0.3, 0.6])


def test_figure_shows_only_panels_with_data_and_one_line_per_label() -> None:
    figure = training_figure(
        [
            run("GRPO", "grpo_dapo", 0, [0.1, 0.2]),
            run("TEPO", "tepo", 0, [0.2, 0.3]),
            run("TEPO", "tepo", 1, [0.2, 0.4]),
        ]
    )
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == TRAINING_PANELS[0].title
    assert [line.get_label() for line in axes.lines] == ["GRPO", "TEPO"]
    assert [line.get_color() for line in axes.lines] == [colours.look("grpo_dapo").colour, colours.look("tepo").colour]
    np.testing.assert_allclose(axes.lines[1].get_ydata(), [20, 35])


def test_no_run_at_all_is_an_empty_figure(tmp_path: Path) -> None:
    assert training_figure([]).axes == []
    assert all(path.stat().st_size > 0 for path in save(training_figure([]), tmp_path, "empty"))


def test_files_are_the_same_when_made_twice(tmp_path: Path) -> None:
    runs = [run("TEPO (A > 0)", "tepo", 0, [0.1, 0.2])]
    paths = save(training_figure(runs), tmp_path, "training")
    assert [path.name for path in paths] == ["training.svg", "training.png"]
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    assert paths[0].read_text() == svg(training_figure(runs))
    assert "TEPO (A &gt; 0)" in paths[0].read_text()


def test_methods_differ_in_colour_or_dash() -> None:
    looks = {method: colours.look(method) for method in colours.METHODS}
    looks.pop("steel")  # the paper's name for steer
    for (one, left), (other, right) in combinations(looks.items(), 2):
        assert left != right, (one, other)
    objectives = {path.stem for path in (Path(tepo.__file__).parent / "config" / "objective").glob("*.yaml")}
    for method in objectives - set(colours.METHODS) | {"a method of tomorrow"}:
        assert colours.look(method) not in looks.values(), method
    assert colours.look("a method of tomorrow") == colours.look("a method of tomorrow")
    assert re.fullmatch("#[0-9A-Fa-f]{6}", colours.look("a method of tomorrow").colour)


def test_rows_of_one_method_keep_its_colour_and_take_other_dashes() -> None:
    found = colours.looks(
        {"beta 1": "tepo_kl_all", "beta 0.1": "tepo_kl_all", "beta 0.01": "tepo_kl_all", "TEPO": "tepo"}
    )
    assert len({style.colour for style in found.values()}) == 2
    assert len(set(found.values())) == 4
    assert found["TEPO"] == colours.look("tepo")
