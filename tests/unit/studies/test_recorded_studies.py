"""Records are shown under the seeds that they hold, and belong to the base that they name."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import tepo
from tepo.analysis.tables import study_table
from tepo.common import paths
from tepo.common.errors import UserError
from tepo.common.grouping import grouped
from tepo.launch.run_units import other_bases
from tepo.policy.model.model_location import BASES, RECIPE_FILE, WEIGHTS
from tepo.reporting.tables.render import as_text
from tepo.studies import plan_studies, planned_facts
from tepo.studies.plan import composed
from tepo.studies.plan_studies import Planned, plan_all
from tepo.studies.planned_facts import read_facts
from tepo.studies.record_runs import anew, drawn, folder_of, plan_by_folder, record_study
from tepo_cli.commands.tables import report, table
from tests.support.results import finish, measure
from tests.support.runs import write
from tests.unit.studies.test_tune import validate

STUDY = """
title: {title}
baseline: plain
rows:
  - {{label: as it was, base: true}}
  - {{label: plain, objective: grpo_dapo}}
  - {{label: {other}, objective: {other}}}
scales: {{laptop: {{models: [{model}], seeds: {seeds}, overrides: [train.steps=2, "data.benchmarks=[add3]"]}}}}
"""
ONE_SEED = {"seeds": [0], "model": "laptop"}
METRICS = {"critic/score/mean": 0.5, "timing_s/step": 2.0, "training/responses": 32}


# seeds: a study's name is enough --------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of one seed that is on record under seeds 0 to 3."""
    folder = tmp_path_factory.mktemp("written")
    write(folder / "own/experiments/mine.yaml", STUDY.format(title="mine", other="gspo", **ONE_SEED))
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


def seeds_of(name: str, store: Path, seeds: Sequence[int] | None = None, records: bool = True) -> dict[str, list[int]]:
    """Of each row."""
    ((_, units),), _ = read_facts(plan_all([name], None, store=store, seeds=seeds), seeds, records=records)
    return {
        row: [unit.seed for unit in part] for row, part in grouped((unit.row.label, unit) for unit in units).items()
    }


def test_records_are_shown_under_all_their_seeds_by_every_command(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = {"as it was": [0], "plain": [0, 1, 2, 3], "gspo": [0, 1, 2, 3]}
    assert seeds_of("mine", own / "none") == every
    table("mine", store=own / "none", records=True, format="csv")
    assert "worse (p" in capsys.readouterr().out
    report(["mine"], store=own / "none", records=True, out=own / "page.html")
    assert "seeds 0, 1, 2, 3" in (own / "page.html").read_text()


def test_seeds_that_are_given_are_those_that_are_shown(own: Path) -> None:
    assert seeds_of("mine", own / "none", [0, 2])["gspo"] == [0, 2]
    assert tepo.results("mine", store=own / "none", seeds=[1]).table["seeds"].tolist() == [[0], [1], [1]]
    assert seeds_of("mine", own / "none", records=False)["gspo"] == [0], "records alone bring seeds along"


def test_of_what_other_studies_recorded_only_seeds_that_all_rows_have_are_added(own: Path) -> None:
    """A row that another study ran more often would stand beside rows under other seeds."""
    wider = STUDY.format(title="wider", other="cispo", **ONE_SEED)
    write(own / "own/experiments/wider.yaml", wider)
    assert seeds_of("wider", own / "none") == {"as it was": [0], "plain": [0, 1, 2, 3], "cispo": [0]}
    write(own / "own/experiments/third.yaml", wider)
    record("third", [0, 1], own / "once")
    assert seeds_of("wider", own / "none") == {"as it was": [0], "plain": [0, 1], "cispo": [0, 1]}
    record("wider", [0, 1, 2], own / "once", but="cispo")  # its own run of a row counts, however many others have it
    assert seeds_of("wider", own / "none")["plain"] == [0, 1, 2]


# a base in the cache of this machine, as `tepo model warmstart` leaves one there --------------------------------------
TUNE = "tune: {draws: 2, seeds: [50], space: {train.learning_rate: {log: [3e-5, 1e-3]}}}\n"
SENTENCE = "cache:mine on this machine is another base than the one on record; tables without --records show its runs."


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that a study of one's own starts from."""
    monkeypatch.setenv("TEPO_PATH", str(tmp_path / "own"))
    monkeypatch.setenv("TEPO_MODELS", str(tmp_path / "models"))
    write(tmp_path / "own/experiments/mine.yaml", STUDY.format(title="mine", other="gspo", model="mine", seeds=[0, 1]))
    write(tmp_path / "own/model/mine.yaml", "name: mine\npath: cache:mine\n")
    shutil.copytree(paths.PACKAGE / "assets/laptop", tmp_path / "models/mine")
    return tmp_path / "models/mine"


def other(base: Path) -> None:
    """Other weights, as another CPU's warm start makes them."""
    tensors = {name: value.clone() for name, value in load_file(base / WEIGHTS).items()}
    next(iter(tensors.values())).add_(1e-3)
    save_file(tensors, base / WEIGHTS, metadata={"format": "pt"})


def plan(store: Path) -> Planned:
    composed.cache_clear()
    return plan_all(["mine"], "laptop", store=store)


def finished(store: Path, chance: float = 0.5) -> Planned:
    """The study with all of its runs done, in as many steps as a plan knows them."""
    for _ in range(3):
        ((_, units),) = plan(store)
        for number, unit in enumerate(one for one in units if not one.done()):
            if unit.tuning:
                validate(unit, (2 + number % 2) / 4, {"add3": [2 + number % 2] * 50})
            elif unit.row.base:
                measure(unit, 0.3)
            else:
                finish(unit, chance + 0.1 * (unit.row.objective == "gspo"))
    return plan(store)


def recorded_text(store: Path) -> str:
    ((study, units),), facts = read_facts(plan(store), records=True)
    return as_text(study_table(study, units, facts), "markdown")


def test_records_are_read_by_the_base_that_they_name(base: Path, tmp_path: Path) -> None:
    """Also where they choose settings first."""
    study = tmp_path / "own/experiments/mine.yaml"
    study.write_text(study.read_text() + TUNE)
    record_study(folder_of("mine"), finished(tmp_path / "runs"))
    expected = recorded_text(tmp_path / "empty")
    assert "not run" not in expected
    assert "stale" not in expected
    other(base)
    text = recorded_text(tmp_path / "empty")
    assert text.count(SENTENCE) == 1
    assert text.replace(f"- {SENTENCE}\n", "") == expected
    (base / WEIGHTS).unlink()
    assert recorded_text(tmp_path / "empty") == expected, "half of it"
    shutil.rmtree(base)
    assert recorded_text(tmp_path / "empty") == expected, "gone"


def test_runs_of_another_base_are_never_shown_beside_those_on_record(base: Path, tmp_path: Path) -> None:
    record_study(folder_of("mine"), finished(tmp_path / "runs"))
    expected = recorded_text(tmp_path / "empty").splitlines()
    other(base)
    (said,) = other_bases([unit for _, units in plan(tmp_path / "here") for unit in units])
    assert said.startswith("cache:mine is another base on this machine than the one on record")
    here = finished(tmp_path / "here", chance=0.9)
    assert not any((tmp_path / "runs" / unit.id).exists() for _, units in here for unit in units)
    text = recorded_text(tmp_path / "here").splitlines()
    assert [line for line in text if "±" in line] == [line for line in expected if "±" in line]
    with pytest.raises(UserError, match="of another base of this name"):
        record_study(folder_of("mine"), here)


def test_how_a_base_is_made_is_recorded_without_the_machine_and_stays(base: Path, tmp_path: Path) -> None:
    """A base that was brought, and not made here, says nothing of it."""
    planned, made = finished(tmp_path / "runs"), {"command": "tepo model warmstart mine"}
    write(base / RECIPE_FILE, json.dumps({"made": made | {"host": "vm"}}))
    for _ in range(2):
        record_study(folder_of("mine"), planned)
        bases = json.loads((folder_of("mine").parent / BASES).read_text())
        assert bases["cache:mine"]["made"] == made
        (base / RECIPE_FILE).unlink(missing_ok=True)


def test_a_recorded_run_is_not_run_anew_from_another_base(base: Path, tmp_path: Path) -> None:
    record_study(folder_of("mine"), finished(tmp_path / "runs"))
    chosen, _ = drawn(plan(tmp_path / "empty"), 3, seed=0)
    assert anew(chosen[0][1], tmp_path / "again").folder.path.parent == tmp_path / "again"
    other(base)
    chosen, _ = drawn(plan(tmp_path / "empty"), 3, seed=0)
    with pytest.raises(UserError, match="another base of that name than the one on record") as refused:
        anew(chosen[0][1], tmp_path / "again")
    assert refused.value.where == "cache:mine"
