"""A page about fifty long runs: at most 10 MB, it can be used within five seconds (of CPU time, which on a machine that
does nothing else is the time one waits), and nothing of it is cut on a phone or on paper."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tepo.config.compose import compose, to_dict
from tepo.reporting.figures.curves import STEP, RunCurves, thinned
from tepo.reporting.page import PageFigure, PageStudy, build_page
from tepo.reporting.page.charts import chart_data
from tepo.reporting.page.head import PageHead
from tepo.reporting.page.run_data import PageRun
from tepo.reporting.page.sample_data import RunSamples
from tepo.reporting.tables.table import Table
from tepo.store.stored_responses import Answer, ProblemAnswers
from tepo.store.stored_tokens import TokenDump, TokenResponse
from tests.unit.reporting.chromium import SHEET, Page, chromium

pytestmark = [pytest.mark.chromium, pytest.mark.slow, pytest.mark.disaster]

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
def path(table: Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With configurations of real size that differ in twelve settings."""
    draw, config = random.Random(7), to_dict(compose([]))
    runs = [
        PageRun(
            f"run-{index}",
            f"row {index // SEEDS}",
            "tepo",
            index % SEEDS,
            {**config, "seed": index % SEEDS, "varied": {f"key{n}": (index // SEEDS + n) % 3 for n in range(12)}},
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
    figures = tuple(PageFigure(f"curves-{number}", "Curves", charts=chart_data(shown)) for number in range(2))
    text = build_page(
        PageHead("Large"), [PageStudy(table, figures)], runs, [samples(index, draw) for index in range(RUNS)]
    )
    path = tmp_path_factory.mktemp("large") / "page.html"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    """A Chromium of its own, whose CPU time is that of this page."""
    with chromium() as page:
        yield page


def test_is_small_enough_and_quick_enough(path: Path, window: Page) -> None:
    assert path.stat().st_size <= 10_000_000
    window.command("Performance.enable")
    window.open(path)
    window.unpacked()
    metrics = window.command("Performance.getMetrics")["metrics"]
    assert next(one["value"] for one in metrics if one["name"] == "ProcessTime") < 5
    assert window.one("#step").text == "600 (3 of 3)"
    assert window.one("#side .note").text.startswith("100 of 100 benchmark problems")
    window.run("document.getElementById('runs-view').open = true")
    window.wait("return document.querySelectorAll('#runs-row option').length > 0")
    assert len(window.all("#runs-row option")) == RUNS // SEEDS


def test_nothing_is_cut(path: Path, window: Page) -> None:
    window.open(path, 400)
    window.unpacked()
    assert window.outside() == []
    window.screen(SHEET, media="print")
    assert window.cut() == []
