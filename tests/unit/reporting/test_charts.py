import json
import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import pandas as pd
import pytest
import vl_convert

from tepo.reporting.charts import style
from tepo.reporting.charts.curves import AXES, curve_frame, ends, training_curves
from tepo.reporting.charts.forest import differences
from tepo.reporting.charts.style import Chart, Looks, digest, drawn, rows_of, specification, styled

MARKUP, CONTROLS = "</script><b>&amp;", "\x07\x1b[2J\ufffe"
NAN, INF = math.nan, math.inf


# what is drawn --------------------------------------------------------------------------------------------------------
def items(chart: Chart, kind: str) -> list[dict[str, Any]]:
    """All that is drawn by marks of a kind (symbol, rule)."""
    return [item for mark in _marks(_scene(json.dumps(specification(chart))), kind) for item in mark]


@lru_cache(maxsize=2)
def _scene(made: str) -> Any:
    return vl_convert.vegalite_to_scenegraph(made)["scenegraph"]["items"][0]


def _marks(item: dict[str, Any], kind: str) -> Iterator[list[dict[str, Any]]]:
    for mark in item["items"]:
        if mark["role"] == "mark" and mark["marktype"] == kind:
            yield mark["items"]
        elif mark["marktype"] == "group" and mark["role"] in ("mark", "scope"):
            for one in mark["items"]:
                yield from _marks(one, kind)


def said(item: dict[str, Any]) -> dict[str, str]:
    """Words of the tooltip."""
    return dict(part.split(": ", 1) for part in item["description"].split("; "))


def lines(made: Chart, x: str = AXES["steps"]) -> dict[str, list[tuple[Any, Any]]]:
    """Of the first panel, method, of a faint line its run, -> points, as their tooltips say them."""
    groups = _scene(json.dumps(specification(made)))["items"]
    (panel,) = (group for group in groups if group.get("name") == "concat_0_group")
    points = {}
    for line in _marks(panel["items"][0], "line"):
        words = [said(item) for item in line]
        (y,) = words[0].keys() - {x, "method", "run", "seed"}
        points[words[0].get("run", words[0]["method"])] = [(float(one[x]), float(one[y])) for one in words]
    return points


# curves ---------------------------------------------------------------------------------------------------------------
REWARD, LENGTH, TOKENS = "critic/score/mean", "response_length/mean", "perf/sampled_tokens"
SAMPLES, SECONDS, KL = "training/responses", "timing_s/step", "actor/realised_kl_k3"
LOOKS: Looks = {"a": ("tepo", None), "b": ("grpo_dapo", None), "old": ("grpo", None)}


def run(method: str, seed: int, rewards: Sequence[Any], ended: bool = False, **more: Any) -> pd.DataFrame:
    """more: metrics, a number or one a step."""
    steps = pd.DataFrame({"training/global_step": range(1, len(rewards) + 1), REWARD: list(rewards)})
    return steps.assign(method=method, seed=seed, run=f"{method}-{seed}", ended=ended, **more)


def curves(*runs: pd.DataFrame) -> Chart:
    return training_curves(curve_frame(pd.concat(runs, ignore_index=True)), LOOKS)


def test_a_mean_stands_only_where_all_seeds_have_the_step() -> None:
    single = run("b", 0, [0.5, None, 0.7])
    made = curves(run("a", 0, [0.1, 0.2, 0.3]), run("a", 1, [0.3, 0.6]), single)
    seeds = {"a-0": [(1, 10), (2, 20), (3, 30)], "a-1": [(1, 30), (2, 60)], "b-0": [(1, 50), (3, 70)]}
    assert lines(made) == {"a": [(1, 20), (2, 40)], "b": [(1, 50), (3, 70)], **seeds}


@pytest.mark.parametrize(
    ("against", "places"),
    [("steps", [1, 2, 3]), ("samples", [150, 350, 500]), ("time", [2, 4.5, 8]), ("kl", [0.2, 0.45, 0.75])],
)
def test_a_step_lies_at_the_mean_of_its_seeds_places(against: str, places: list[float]) -> None:
    one = {SAMPLES: [100, 400], TOKENS: [10, 10], SECONDS: 2.0, KL: [0.1, 0.2]}
    lacking = {name: [1.0, None] for name in (SAMPLES, TOKENS, SECONDS, KL)}
    other = {SAMPLES: [200, 300, 500], TOKENS: [20, 20, 10], SECONDS: [2.0, 3.0, 3.0], KL: [0.3, 0.3, 0.15]}
    first, second = run("a", 0, [0.4, 0.2], True, **one), run("a", 1, [0.4, 0.6, 0.8], **other)
    every = pd.concat([first, second, run("old", 0, [0.5] * 2, **lacking)], ignore_index=True)
    frame = curve_frame(every, against=against)
    assert frame["at"][:5].tolist() == pytest.approx([*places[:2], *places])
    assert ("old" in set(frame["method"])) is (against == "steps"), "a run that lacks the axis is left out"
    made = training_curves(frame, LOOKS, against=against)
    assert lines(made, x=AXES[against])["a"] == [(pytest.approx(place), 40) for place in places[:2]]


def test_ends_are_means_at_the_last_step() -> None:
    runs = [run("a", 0, [0.1, 0.2]), run("a", 1, [0.3, 0.5], **{LENGTH: [1.0, 1234.0]}), run("b", 0, [0.1, None])]
    found = ends(curve_frame(pd.concat(runs, ignore_index=True))).to_numpy().tolist()
    assert found == [["a", "35", "1230"], ["b", "10", "–"]]


# differences ----------------------------------------------------------------------------------------------------------
USUAL = ((-3.0, -4.0, -2.0), (0.5, -0.5, 1.5), (2.0, 1.0, 3.0))
FAR = ((-400.0, -420.0, -380.0), (1.0, -300.0, 300.0), (900.0, NAN, NAN), (-2.0, -INF, 1.0))


def domain(chart: Chart) -> tuple[float, float]:
    """Ends of the horizontal scale."""
    low, high = re.findall(r'"scale": {[^{}]*"domain": \[(-?[\d.]+), (-?[\d.]+)\]', json.dumps(specification(chart)))[0]
    return float(low), float(high)


def places(chart: Chart, *values: float) -> Any:
    """Pixels of values."""
    low, high = domain(chart)
    return pytest.approx([420 * (value - low) / (high - low) for value in values])


def test_a_point_stands_where_its_number_is_and_what_lies_beyond_the_scale_is_an_arrow() -> None:
    rows = pd.DataFrame((*USUAL, *FAR), columns=["delta", "low", "high"])
    chart = differences(rows.assign(method=list("abcdefg"), verdict="worse", said="in words"), ["points"])
    symbols = [(said(item)["method"], item["shape"], item["x"]) for item in items(chart, "symbol")]
    arrows = [one for one in symbols if one[1] in ("triangle-left", "triangle-right")]
    points = {method: x for method, shape, x in symbols if (method, shape, x) not in arrows}
    rules = {said(item)["method"]: (item["x"], item["x2"]) for item in items(chart, "rule") if item["strokeWidth"] == 2}
    assert (list(points), list(points.values())) == (list("abceg"), places(chart, -3, 0.5, 2, 1, -2))
    left, right = [(row, "triangle-left", 0) for row in "deg"], [(row, "triangle-right", 420) for row in "ef"]
    assert arrows == left + right
    assert [*rules["a"], rules["g"][1]] == places(chart, -4, -2, 1)
    assert (rules["d"], rules["e"], rules["g"][0], "f" in rules) == ((0, 0), (0, 420), 0, False)
    low, high = domain(chart)
    assert -40 < low < -4 < 3 < high < 40


# files ----------------------------------------------------------------------------------------------------------------
STARTS = {"svg": b"<svg", "pdf": b"%PDF", "png": b"\x89PNG\r\n\x1a\n", "html": b"<!DOCTYPE html>", "json": b"{"}


def forest(delta: float = 1.23456, title: str = "points", **more: Any) -> Chart:
    rows = {"method": ["a", "b"], "delta": [delta, 2.0], "low": [0.5, 1.0], "high": [2.5, 3.0]}
    return differences(pd.DataFrame({**rows, "verdict": ["worse", "better"], "said": "words", **more}), title)


@pytest.mark.parametrize("format", STARTS)
def test_a_file_of_every_format_whatever_labels_say(format: str) -> None:
    assert list(STARTS) == list(style.FORMATS)
    file = drawn(forest(title=MARKUP, method=[CONTROLS, MARKUP], verdict=["$x$", "=cmd"]), format)
    assert (file if isinstance(file, bytes) else file.encode()).startswith(STARTS[format])
    if format == "json":
        labels = [row["method"] for rows in json.loads(file)["datasets"].values() for row in rows]
        assert labels == ["\\x07\\x1b[2J\\ufffe", MARKUP]


def test_html_loads_nothing_and_has_no_label_as_markup() -> None:
    labels = ["</script><img src=x onerror=alert(1)><!--", '"] || alert(1)//']
    text = str(drawn(forest(method=labels), "html"))
    rest = re.sub("<script>.*?</script>", "", text, flags=re.DOTALL)
    assert "alert" not in rest
    assert not re.search("src=|href=", rest)
    assert not re.search(r"""\bimport\s*[("'{*]|importScripts|<!--""", text)
    made, _ = json.JSONDecoder().raw_decode(text.split('vegaEmbed("#chart", ')[1])
    assert [row["method"] for rows in made["datasets"].values() for row in rows] == labels


@pytest.mark.parametrize(
    ("other", "same"),
    [(forest(1.2345600001), True), (styled(forest()), True), (forest(1.23556), False), (forest(title="%"), False)],
)
def test_a_hash_changes_with_what_is_shown(other: Chart, same: bool) -> None:
    assert (digest(forest()) == digest(other)) is same


def test_rows_for_json_are_rounded_and_hold_null_for_what_is_no_number() -> None:
    frame = pd.DataFrame({"a": [1.23456789, NAN, INF], "b": [1, 2, 3], "c": ["x", None, "y"]})
    rounded = [{"a": 1.23457, "b": 1, "c": "x"}, {"a": None, "b": 2, "c": None}, {"a": None, "b": 3, "c": "y"}]
    assert rows_of(frame) == rounded
