import json
import math
import re
from typing import Any

import pandas as pd
import pytest

from tepo.reporting.charts import style
from tepo.reporting.charts.curves import curve_frame, training_curves
from tepo.reporting.charts.forest import differences
from tepo.reporting.charts.style import Chart, digest, drawn, fitted, rows_of, specification, styled
from tests.unit.reporting.charts.drawing import HOSTILE, LABELS

STARTS = (
    ("svg", b"<svg"),
    ("pdf", b"%PDF"),
    ("png", b"\x89PNG\r\n\x1a\n"),
    ("html", b"<!DOCTYPE html>"),
    ("json", b"{"),
)


def forest(delta: float = 1.23456, title: str = "points", **more: Any) -> Chart:
    rows = {"method": ["a", "b"], "delta": [delta, 2.0], "low": [0.5, 1.0], "high": [2.5, 3.0]}
    return differences(pd.DataFrame({**rows, "verdict": ["worse", "better"], "said": "words", **more}), title)


def curves(runs: int = 2, last: float = 0.25) -> Chart:
    """101 points a run."""
    names = [f"m{run}" for run in range(runs)]
    steps = {"training/global_step": list(range(101)) * runs, "critic/score/mean": ([0.5] * 100 + [last]) * runs}
    every = pd.DataFrame({"method": [name for name in names for _ in range(101)], "seed": 0, "ended": False, **steps})
    return training_curves(curve_frame(every.assign(run=every["method"])), dict.fromkeys(names, ("tepo", None)))


@pytest.mark.parametrize(("format", "start"), STARTS)
def test_a_file_of_every_format_whatever_labels_say(format: str, start: bytes) -> None:
    assert [one for one, _ in STARTS] == list(style.FORMATS)
    chart = forest(title=LABELS[0], method=[LABELS[3], LABELS[0]], verdict=[*HOSTILE[4:6]])
    found = drawn(chart, format)
    assert (found if isinstance(found, bytes) else found.encode()).startswith(start)
    if format == "json":
        made = json.loads(found)
        assert made["$schema"].startswith("https://vega.github.io/schema/vega-lite/")
        assert [row["method"] for rows in made["datasets"].values() for row in rows] == [
            "\\x07\\x1b[2J\\ufffe",
            LABELS[0],
        ]
    if format == "svg":
        assert found.endswith(f"<!-- chart {digest(chart)} --></svg>")


def test_html_loads_nothing_and_has_no_label_as_markup() -> None:
    labels = ["</script><img src=x onerror=alert(1)><!--", '"] || alert(1)//']
    text = str(drawn(forest(method=labels), "html"))
    rest = re.sub("<script>.*?</script>", "", text, flags=re.DOTALL).replace("\n", "")
    head = '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Chart</title></head>'
    assert rest == head + '<body><div id="chart"></div></body></html>'
    assert not re.search(r"""\bimport\s*[("'{*]|importScripts|<!--""", text)
    made, _ = json.JSONDecoder().raw_decode(text.split('vegaEmbed("#chart", ')[1])
    assert [row["method"] for rows in made["datasets"].values() for row in rows] == labels


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (forest(), True),
        (forest(1.2345600001), True),
        (forest(1.23556), False),
        (forest(title="percent"), False),
        (forest(method=["a", "c"]), False),
        (forest(verdict=["better", "worse"]), False),
        (forest(high=[2.5, math.nan]), False),
        (styled(forest()), True),
    ],
)
def test_a_hash_changes_with_what_is_shown(other: Chart, same: bool) -> None:
    assert (digest(forest()) == digest(other)) is same


def test_a_hash_keeps_the_order_of_rows_and_no_names_that_altair_makes() -> None:
    plain, lines = digest(forest()), digest(curves())
    assert digest(forest(method=["b", "a"])) != plain
    assert (digest(curves(2, 0.25001)) == lines, digest(curves(2, 0.251)) == lines) == (True, False), "as it is drawn"
    chart, several = forest(), curves()
    chart.name, chart.layer[0].name = "one", "another"
    several.params[0].views = ["another"]
    assert (digest(chart), digest(several)) == (plain, lines)


def test_rows_for_json_are_rounded_and_hold_null_for_what_is_no_number() -> None:
    frame = pd.DataFrame({"a": [1.23456789, math.nan, math.inf], "b": [1, 2, 3], "c": ["x", None, "y"]})
    rounded = [{"a": 1.23457, "b": 1, "c": "x"}, {"a": None, "b": 2, "c": None}, {"a": None, "b": 3, "c": "y"}]
    assert rows_of(frame) == rounded
    assert rows_of(frame[["a"]], digits=2)[0] == {"a": 1.2}
    assert rows_of(frame[:0]) == []


@pytest.mark.parametrize(("width", "columns", "each"), [(355, 1, 300), (760, 2, 325), (1000, 3, 278), (3000, 3, 945)])
def test_panels_fit_a_width(width: int, columns: int, each: int) -> None:
    made = {**specification(forest()), "concat": [{"width": 250}] * 5, "columns": 3, "usermeta": {}}
    assert (fitted(made, width)["columns"], fitted(made, width)["concat"]) == (columns, [{"width": each}] * 5)
    assert (made["columns"], fitted(made, None)["columns"]) == (3, 3)
    alone = specification(forest())
    assert fitted(alone, width)["width"] == width - alone["usermeta"]["beside"]
