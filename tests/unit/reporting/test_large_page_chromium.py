"""A page about fifty long runs: at most 10 MB, and it can be used within five seconds (of CPU time, which on a machine
that does nothing else is the time one waits)."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tepo.evaluation.answered import Answer, ProblemAnswers
from tepo.reporting.curves import STEP, RunCurves, svg, training_figure
from tepo.reporting.page import PageFigure, PageRun, PageStudy, build_page
from tepo.reporting.page.charts import chart_data
from tepo.reporting.page.head import PageHead
from tepo.reporting.page.sample_data import RunSamples
from tepo.reporting.table import Table
from tepo.reporting.thin import thinned
from tepo.reporting.token_view import TokenDump, TokenResponse
from tests.unit.reporting.chromium import Page, chromium

pytestmark = [pytest.mark.chromium, pytest.mark.slow]

RUNS, SEEDS, STEPS, TOKENS = 50, 5, 600, 60
METRICS = ("critic/score/mean", "actor/entropy", "actor/pg_clipfrac", "actor/grad_norm", "response_length/mean")


def dump(step: int, draw: random.Random) -> TokenDump:
    def response(number: int) -> TokenResponse:
        tokens = [draw.choice(["1", "27", "+", "so", "\\boxed{", "}", "=", "\n"]) for _ in range(TOKENS)]
        names = ("advantage", "ratio", "log_ratio", "entropy", "entropy_change", "kl_mask", "kl", "weight")
        values = {name: [draw.gauss(0, 1) for _ in tokens] for name in names}
        return TokenResponse(f"{draw.random()}+{number}=", "15", float(number % 2), True, number // 8, tokens, values)

    return TokenDump(step, "tepo", tuple(response(number) for number in range(32)))


def samples(index: int, draw: random.Random) -> RunSamples:
    def problem(number: int) -> ProblemAnswers:
        texts = ["".join(draw.choices("0123456789+=,; ", k=120)) for _ in range(4)]
        answers = tuple(Answer(text, "3", draw.random() < 0.5, "exact", 60, True) for text in texts)
        return ProblemAnswers(f"add3-{number}", f"{number}+2=", "3", answers)

    return RunSamples(f"run-{index}", f"row {index}", {"add3": [problem(number) for number in range(100)]})


@pytest.fixture(scope="module")
def page(table: Table, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Page]]:
    draw = random.Random(7)
    runs = [
        PageRun(
            f"run-{index}",
            f"row {index // SEEDS}",
            "tepo",
            index % SEEDS,
            {"seed": index % SEEDS, "objective": {"name": "tepo"}, "train": {"steps": STEPS, "lr": index // SEEDS}},
            {"steps": STEPS},
            [dump(step, draw) for step in (200, 400, 600)],
        )
        for index in range(RUNS)
    ]
    curves = [
        RunCurves(
            run.label,
            "tepo",
            run.seed,
            [{STEP: step, **{name: draw.random() for name in METRICS}} for step in range(1, STEPS + 1)],
        )
        for run in runs
    ]
    shown = thinned(curves, 200)
    figures = tuple(
        PageFigure(f"curves-{number}", "Curves", svg(training_figure(shown)), chart_data(shown)) for number in range(2)
    )
    text = build_page(
        PageHead("Large"), [PageStudy(table, figures)], runs, [samples(index, draw) for index in range(RUNS)]
    )
    path = tmp_path_factory.mktemp("large") / "page.html"
    path.write_text(text, encoding="utf-8")
    with chromium() as window:
        yield path, window


def test_is_small_enough_and_quick_enough(page: tuple[Path, Page]) -> None:
    path, window = page
    assert path.stat().st_size <= 10_000_000
    window.driver.execute_cdp_cmd("Performance.enable", {})
    window.open(path)
    window.wait("return ['side-view', 'token-view'].every((id) => document.getElementById(id).hidden === false)")
    metrics = window.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    assert next(one["value"] for one in metrics if one["name"] == "ProcessTime") < 5
    assert window.one("#step").text == "600 (3 of 3)"
    assert window.one("#side .note").text.startswith("100 of 100 benchmark problems")
    assert window.console() == []
