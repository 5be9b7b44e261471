from pathlib import Path

import altair
import pytest

import tepo
from tepo.common.errors import UserError
from tepo.studies import planned_facts
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import plan_all
from tepo_cli.commands.tables import figure, report
from tests.support.results import finish
from tests.support.runs import write

STUDY = """
title: {title}
baseline: plain
rows: [{{label: plain, objective: grpo_dapo}}, {{label: other, objective: {other}}}]
scales: {{laptop: {{models: [laptop], seeds: [0, 1], overrides: [train.steps=2, "data.benchmarks=[add3]"]}}}}
"""
METRICS = {"critic/score/mean": 0.5, "timing_s/step": 2.0, "timing_s/gen": 1.5, "training/responses": 32}
CHARTS = ["mine-differences", "mine-curves"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All runs of `mine`; `lacking` shares the baseline with it, and lacks its other row."""
    for name, other in (("mine", "gspo"), ("lacking", "tepo")):
        write(tmp_path / f"own/experiments/{name}.yaml", STUDY.format(title=name, other=other))
    monkeypatch.setenv("TEPO_PATH", str(tmp_path / "own"))
    names = ["lacking", "mine"]  # a plan of all studies takes seconds
    monkeypatch.setattr(planned_facts, "study_names", lambda: names)
    ((_, units),) = plan_all(["mine"], "laptop", store=tmp_path / "runs")
    for unit in units:
        finish(unit, 0.8 if unit.label == "plain" else 0.5, **METRICS)
    return tmp_path / "runs"


def test_all_charts_of_a_study_are_written_in_a_format(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure("mine", store=store, format="png", out=store.parent / "figures")
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert [path.name for path in written] == [f"figure-{name}.png" for name in CHARTS]
    assert sorted(store.parent.glob("figures/*")) == sorted(written)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_curves_are_drawn_against_another_axis_that_the_runs_know(store: Path) -> None:
    figure("mine", store=store, format="json", against="samples", out=store.parent / "figures")
    text = (store.parent / "figures/figure-mine-curves.json").read_text()
    assert "responses drawn" in text
    assert "training step" not in text
    with pytest.raises(UserError, match="no run of mine holds what 'tokens' counts"):
        figure("mine", store=store, against="tokens", out=store.parent / "none")
    assert not (store.parent / "none").exists()


def test_a_panel_that_was_not_run_does_not_keep_the_others_from_being_drawn(store: Path) -> None:
    longer = STUDY.format(title="longer", other="gspo").replace("steps=2", "steps=3")
    longer = longer.replace("baseline: ", "baseline: longer ").replace("label: ", "label: longer ")
    write(store.parent / "own/experiments/longer.yaml", longer)
    both = "title: both\npanels: [longer, mine]\nscales: {laptop: {models: [laptop], seeds: [0, 1]}}\n"
    write(store.parent / "own/experiments/table9.yaml", both)
    figure("table9", store=store, format="json", out=store.parent / "figures")
    assert {path.name for path in store.parent.glob("figures/*")} == {f"figure-{name}.json" for name in CHARTS}


def units_of(store: Path, name: str) -> list[Unit]:
    return plan_all([name], "laptop", store=store)[0][1]


def test_figures_of_what_is_on_record_need_no_store(tmp_path: Path) -> None:
    for name in ("panel-e", "2a"):
        figure(name, store=tmp_path / "nothing", records=True, format="json", out=tmp_path / "figures")
    drawn = {"panel_e-differences", "panel_e-curves", "2a"}
    assert {path.name for path in tmp_path.rglob("*")} == {"figures", *(f"figure-{name}.json" for name in drawn)}


def test_a_page_without_a_study_named_is_of_those_that_are_measured(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report(None, store=store, out=store.parent / "page.html")
    assert "on the page: mine" in capsys.readouterr().err
    text = (store.parent / "page.html").read_text()
    assert 'id="table-mine"' in text
    assert "lacking" not in text


def test_what_another_study_shows_already_is_not_shown_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(store.parent / "own/experiments/again.yaml", STUDY.format(title="again", other="gspo"))
    monkeypatch.setattr(planned_facts, "study_names", lambda: ["again", "lacking", "mine"])
    assert planned_facts.measured_studies("laptop", store) == ["again"]


@pytest.mark.parametrize("named", [None, ["lacking"]])
def test_a_page_of_nothing_is_refused(named: list[str] | None, store: Path) -> None:
    for unit in units_of(store, "mine"):
        (store / unit.id).rename(store.parent / unit.id)
    for call in (lambda out: report(named, store=store, out=out), lambda out: figure("lacking", store=store, out=out)):
        with pytest.raises(UserError, match=r"measured|nothing of lacking was run") as caught:
            call(store.parent / "out")
        assert caught.value.exit_code == 2
        assert caught.value.fix.startswith("tepo ablate ")
        assert not (store.parent / "out").exists()


def test_python_has_the_charts_by_name(store: Path) -> None:
    charts = tepo.results("mine", store=store, records=False).charts
    assert list(charts) == CHARTS
    assert all(isinstance(chart, altair.TopLevelMixin) for chart in charts.values())
    assert "other" in charts["mine-curves"].to_json()
    assert tepo.results("lacking", store=store.parent / "none", records=False).charts == {}
    assert "gspo" in tepo.RunResult(units_of(store, "mine")[-1].folder.path).chart().to_json()
