import pandas as pd
import pytest

from tepo.common.errors import UserError
from tepo.reporting.charts.curves import Panel, curve_frame, training_curves
from tepo.reporting.charts.paper_figures import panels_of
from tepo.reporting.charts.style import Looks, specification
from tepo.studies.study import load_study

LOOKS: Looks = {"GRPO/DAPO": ("grpo_dapo", None), "TEPO": ("tepo", None)}
BEST = tuple(f"critic/score/best@{size}" for size in (2, 16, 8))


def steps(*metrics: str) -> pd.DataFrame:
    """Three steps of two runs."""
    values = {name: [0.1 + place, 0.2 + place, 0.3 + place] * 2 for place, name in enumerate(metrics)}
    labels = [label for label in LOOKS for _ in range(3)]
    return pd.DataFrame({"training/global_step": [1, 2, 3] * 2, "method": labels, "run": labels, **values}).assign(
        seed=0, ended=False
    )


def panels(name: str, *metrics: str) -> tuple[Panel, ...]:
    figure = next(figure for figure in load_study("figures").figures if figure.name == name)
    return panels_of(figure.of, figure.curves, figure.best, steps(*metrics))


@pytest.mark.parametrize(
    ("name", "metrics", "title"),
    [
        ("2a", ("actor/pg_clipfrac",), "Clip ratio"),
        ("gtpo-3", BEST, "Best of 16 responses"),
        ("gtpo-4", BEST, "Best of 8 responses"),
    ],
)
def test_curves_of_one_metric(name: str, metrics: tuple[str, ...], title: str) -> None:
    drawn = panels(name, *metrics)
    chart = training_curves(curve_frame(steps(*metrics), drawn), LOOKS, drawn)
    assert [panel["title"] for panel in specification(chart)["concat"]] == [title]


@pytest.mark.parametrize(
    ("name", "metrics", "message"),
    [
        ("3a", ("actor/lr",), "no run holds critic/score/mean"),
        ("v1-4", (), "no run holds critic/score/mean, actor/entropy, actor/grad_norm"),
        ("gtpo-3", ("critic/score/best@8x",), "hold no metric critic/score/best@k"),
        ("gtpo-4", ("critic/score/best@8",), "hold no second metric critic/score/best@k"),
    ],
)
def test_what_is_missing_is_named(name: str, metrics: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        panels(name, *metrics)
