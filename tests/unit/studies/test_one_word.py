"""A study's name is enough: its scale, and the seeds that records hold it under, are known."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import tepo
from tepo.analysis.charts import comparison_charts
from tepo.analysis.tables import study_table
from tepo.common import paths
from tepo.common.errors import UserError
from tepo.reporting.charts.style import specification
from tepo.reporting.headline import headline
from tepo.store.facts import Facts
from tepo.studies import plan_studies, planned_facts
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import plan_all
from tepo.studies.planned_facts import read_facts
from tepo.studies.record_runs import folder_of, plan_by_folder, record_study
from tepo_cli.commands.studies import ablate, plan, reproduce
from tepo_cli.commands.tables import figure, report, table
from tests.support.results import finish
from tests.support.runs import write

STUDY = """
title: {title}
baseline: plain
rows:
  - {{label: as it was, base: true}}
  - {{label: plain, objective: grpo_dapo}}
  - {{label: {other}, objective: {other}}}
scales: {{{scale}: {{models: [laptop], seeds: {seeds}, overrides: [train.steps={steps}, "data.benchmarks=[add3]"]}}}}
"""
MINE = {"title": "mine", "other": "gspo", "scale": "laptop", "steps": 2, "seeds": "[0]"}
THEIRS = MINE | {"title": "theirs", "scale": "mini", "steps": 3}
METRICS = {"critic/score/mean": 0.5, "timing_s/step": 2.0, "training/responses": 32}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two studies of one seed, each at a scale of its own, that are on record under seeds 0 to 3."""
    folder = tmp_path_factory.mktemp("written")
    scale = (paths.shipped("scale") / "laptop.yaml").read_text().replace("scale: laptop", "scale: mini", 1)
    write(folder / "own/scale/mini.yaml", scale)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEPO_PATH", str(folder / "own"))
        for study in (MINE, THEIRS):
            write(folder / f"own/experiments/{study['title']}.yaml", STUDY.format(**study))
            record(str(study["title"]), range(4), folder / "once")
    return folder


@pytest.fixture
def own(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of these studies and their records, the only ones that there are."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path / "own"))
    monkeypatch.setattr(planned_facts, "study_names", lambda: ["mine", "theirs"])
    monkeypatch.setattr(plan_studies, "claim_files", dict)
    return tmp_path


def record(name: str, seeds: Sequence[int], store: Path, but: str = "") -> None:
    """Records of a study, without those of one row."""
    ((study, units),) = plan_by_folder([name], None, store, seeds)[name]
    for unit in units:
        if unit.row.label != but and not unit.folder.path.is_dir():
            finish(unit, 0.8 if unit.row.label == "plain" else 0.4 if unit.row.base else 0.5, **METRICS)
    record_study(folder_of(name), [(study, units)])


def read(name: str, store: Path, seeds: Sequence[int] | None = None) -> tuple[list[Unit], Facts]:
    ((_, units),), facts = read_facts(plan_all([name], None, store=store, seeds=seeds), seeds, records=True)
    return units, facts


def seeds_of(units: Sequence[Unit]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for unit in units:
        found.setdefault(unit.row.label, []).append(unit.seed)
    return found


# seeds ----------------------------------------------------------------------------------------------------------------
def test_records_are_shown_under_all_their_seeds_by_every_command(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = {"as it was": [0], "plain": [0, 1, 2, 3], "gspo": [0, 1, 2, 3]}
    assert seeds_of(read("mine", own / "none")[0]) == every
    found = tepo.results("mine", store=own / "none").table.set_index("label")
    assert list(found.loc["gspo", "seeds"]) == [0, 1, 2, 3]
    assert found.loc["gspo", "verdict"] == "worse"
    table("mine", store=own / "none", records=True, format="csv")
    assert "worse (p" in capsys.readouterr().out
    plan(["mine"], store=own / "none", records=True, difference=2)
    assert "4 seeds find a difference" in " ".join(capsys.readouterr().err.split())
    for call in (report, reproduce):
        call(["mine"], store=own / "none", records=True, out=own / "page.html")
        assert "seeds 0, 1, 2, 3" in (own / "page.html").read_text()
    figure("mine", store=own / "none", records=True, format="json", out=own / "figures")
    assert '"worse"' in (own / "figures/figure-mine-differences.json").read_text()


def test_seeds_that_are_given_are_those_that_are_shown(own: Path) -> None:
    assert seeds_of(read("mine", own / "none", [0, 2])[0])["gspo"] == [0, 2]
    assert tepo.results("mine", store=own / "none", seeds=[1]).table["seeds"].tolist() == [[0], [1], [1]]
    ((_, units),), _ = read_facts(plan_all(["mine"], None, store=own / "none"))
    assert seeds_of(units)["gspo"] == [0], "records alone bring seeds along"


def test_of_what_other_studies_recorded_only_seeds_that_all_rows_have_are_added(own: Path) -> None:
    """A row that another study ran more often would stand beside rows under other seeds."""
    wider = STUDY.format(**MINE | {"title": "wider", "other": "cispo"})
    write(own / "own/experiments/wider.yaml", wider)
    assert seeds_of(read("wider", own / "none")[0]) == {"as it was": [0], "plain": [0, 1, 2, 3], "cispo": [0]}
    write(own / "own/experiments/third.yaml", wider)
    record("third", [0, 1], own / "once")
    assert seeds_of(read("wider", own / "none")[0]) == {"as it was": [0], "plain": [0, 1], "cispo": [0, 1]}
    record("wider", [0, 1, 2], own / "once", but="cispo")  # its own run of a row counts, however many others have it
    assert seeds_of(read("wider", own / "none")[0])["plain"] == [0, 1, 2]


def test_a_recorded_study_stands_below_what_was_trained(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ((_, units),) = plan_all(["mine"], None, store=own / "runs")
    for unit in units:
        finish(unit, 0.5, **METRICS)
    ablate("mine", store=own / "runs")
    trained, title, recorded = capsys.readouterr().out.partition("On record, not run here. mine")
    assert title
    assert "1 seed: no verdict" in trained
    assert "worse (p" in recorded
    assert "11 of 11" not in trained + recorded
    assert "9 of 9 runs read from records" in " ".join(recorded.split())
    for more in ({"format": "csv"}, {"override": ["train.learning_rate=2e-4"]}):  # to be read on; on record nowhere
        if "override" in more:
            for unit in plan_all(["mine"], None, store=own / "runs", overrides=more["override"])[0][1]:
                if not unit.folder.path.is_dir():
                    finish(unit, 0.5, **METRICS)
        ablate("mine", store=own / "runs", **more)
        assert "On record" not in capsys.readouterr().out


# scales ---------------------------------------------------------------------------------------------------------------
def test_a_study_of_one_scale_is_taken_at_it(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table("theirs", store=own / "none", records=True, format="markdown")
    assert "mini scale" in capsys.readouterr().out
    assert "(mini)" in repr(tepo.results("theirs", store=own / "none"))
    with pytest.raises(UserError, match="unknown scale 'laptop'"):
        table("theirs", store=own / "none", records=True, scale="laptop")


def test_studies_of_several_scales_are_on_one_page_each_at_its_own(own: Path) -> None:
    assert planned_facts.measured_studies(None, own / "none", records=True)[-2:] == ["mine", "theirs"]
    for call in (report, reproduce):
        call(["mine", "theirs"], store=own / "none", records=True, out=own / "page.html", results=own / "page.md")
        text = (own / "page.html").read_text()
        assert "laptop and mini scale" in text
        assert "2 steps; checkpoint" in text
        assert "3 steps; checkpoint" in text
        assert (own / "page.md").read_text().startswith("# Results at laptop and mini scale")


def test_a_study_of_several_scales_without_the_usual_one_asks(own: Path) -> None:
    both = STUDY.format(**THEIRS).replace("scales: {", "scales: {paper: {models: [laptop], seeds: [0]}, ")
    write(own / "own/experiments/asks.yaml", both)
    with pytest.raises(UserError, match="asks is taken at several scales") as caught:
        table("asks", store=own / "none", records=True)
    assert caught.value.fix == "--scale paper or --scale mini"


# the untrained base ---------------------------------------------------------------------------------------------------
def test_the_untrained_base_is_no_finding_and_in_no_chart_of_differences(own: Path) -> None:
    units, facts = read("mine", own / "none")
    shown = study_table(plan_all(["mine"], None, store=own)[0][0], units, facts)
    (base,) = [row for row in shown.blocks[0].rows if row.label == "as it was"]
    assert "worse" in base.cells[-1].text + base.cells[-2].text + str(base.cells), "the table has it, with its verdict"
    assert headline(shown) == "gspo scores below plain, none above"[: len(headline(shown))]
    assert "as it was" not in headline(shown)
    (chart,) = comparison_charts(shown)
    made = specification(chart.chart)
    assert {row["method"] for data in made["datasets"].values() for row in data if "delta" in row} == {"gspo"}
    assert any(text.startswith("as it was: 4") and text.endswith(" points") for text in titles_of(made)), titles_of(
        made
    )


def titles_of(made: object) -> list[str]:
    """Every line of a title in a specification."""
    found: list[str] = []
    for key, value in made.items() if isinstance(made, dict) else enumerate(made) if isinstance(made, list) else ():
        found += value if key == "title" and isinstance(value, list) else titles_of(value)
    return found
