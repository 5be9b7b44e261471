"""A study's name is enough: its scale, and the seeds that records hold it under, are known."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import tepo
from tepo.store.facts import Facts
from tepo.studies import plan_studies, planned_facts
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import plan_all
from tepo.studies.planned_facts import read_facts
from tepo.studies.record_runs import folder_of, plan_by_folder, record_study
from tepo_cli.commands.tables import report, table
from tests.support.results import finish
from tests.support.runs import write

STUDY = """
title: {title}
baseline: plain
rows:
  - {{label: as it was, base: true}}
  - {{label: plain, objective: grpo_dapo}}
  - {{label: {other}, objective: {other}}}
scales: {{laptop: {{models: [laptop], seeds: [0], overrides: [train.steps=2, "data.benchmarks=[add3]"]}}}}
"""
METRICS = {"critic/score/mean": 0.5, "timing_s/step": 2.0, "training/responses": 32}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of one seed that is on record under seeds 0 to 3."""
    folder = tmp_path_factory.mktemp("written")
    write(folder / "own/experiments/mine.yaml", STUDY.format(title="mine", other="gspo"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEPO_PATH", str(folder / "own"))
        record("mine", range(4), folder / "once")
    return folder


@pytest.fixture
def own(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it and its records, the only ones that there are."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path / "own"))
    monkeypatch.setattr(planned_facts, "study_names", lambda: ["mine"])
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


def test_records_are_shown_under_all_their_seeds_by_every_command(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = {"as it was": [0], "plain": [0, 1, 2, 3], "gspo": [0, 1, 2, 3]}
    assert seeds_of(read("mine", own / "none")[0]) == every
    table("mine", store=own / "none", records=True, format="csv")
    assert "worse (p" in capsys.readouterr().out
    report(["mine"], store=own / "none", records=True, out=own / "page.html")
    assert "seeds 0, 1, 2, 3" in (own / "page.html").read_text()


def test_seeds_that_are_given_are_those_that_are_shown(own: Path) -> None:
    assert seeds_of(read("mine", own / "none", [0, 2])[0])["gspo"] == [0, 2]
    assert tepo.results("mine", store=own / "none", seeds=[1]).table["seeds"].tolist() == [[0], [1], [1]]
    ((_, units),), _ = read_facts(plan_all(["mine"], None, store=own / "none"))
    assert seeds_of(units)["gspo"] == [0], "records alone bring seeds along"


def test_of_what_other_studies_recorded_only_seeds_that_all_rows_have_are_added(own: Path) -> None:
    """A row that another study ran more often would stand beside rows under other seeds."""
    wider = STUDY.format(title="wider", other="cispo")
    write(own / "own/experiments/wider.yaml", wider)
    assert seeds_of(read("wider", own / "none")[0]) == {"as it was": [0], "plain": [0, 1, 2, 3], "cispo": [0]}
    write(own / "own/experiments/third.yaml", wider)
    record("third", [0, 1], own / "once")
    assert seeds_of(read("wider", own / "none")[0]) == {"as it was": [0], "plain": [0, 1], "cispo": [0, 1]}
    record("wider", [0, 1, 2], own / "once", but="cispo")  # its own run of a row counts, however many others have it
    assert seeds_of(read("wider", own / "none")[0])["plain"] == [0, 1, 2]
