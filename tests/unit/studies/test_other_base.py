"""Records of runs whose base is a model in the cache of this machine, as `tepo model warmstart` leaves one there."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tepo.analysis.tables import study_table
from tepo.common import paths
from tepo.common.errors import UserError
from tepo.launch.run_units import other_bases
from tepo.policy.model.model_location import BASES, RECIPE_FILE, WEIGHTS
from tepo.reporting.tables.render import as_text
from tepo.studies.plan import composed
from tepo.studies.plan_studies import Planned, plan_all
from tepo.studies.planned_facts import read_facts
from tepo.studies.record_runs import anew, drawn, folder_of, record_study
from tests.support.results import finish, measure
from tests.support.runs import write
from tests.unit.studies.test_tune import validate

STUDY = """
title: mine
baseline: GRPO/DAPO
rows:
  - {label: base, base: true}
  - {label: GRPO/DAPO, objective: grpo_dapo}
  - {label: GSPO, objective: gspo}
scales:
  laptop: {models: [mine], seeds: [0, 1], overrides: [train.steps=2, "data.benchmarks=[add3]"]}
"""
TUNE = "tune: {draws: 2, seeds: [50], space: {train.learning_rate: {log: [3e-5, 1e-3]}}}\n"
SENTENCE = "cache:mine on this machine is another base than the one on record; tables without --records show its runs."


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A base in the cache that a study of one's own starts from."""
    monkeypatch.setenv("TEPO_PATH", str(tmp_path / "own"))
    monkeypatch.setenv("TEPO_MODELS", str(tmp_path / "models"))
    write(tmp_path / "own/experiments/mine.yaml", STUDY)
    write(tmp_path / "own/model/mine.yaml", "name: mine\npath: cache:mine\n")
    shutil.copytree(paths.PACKAGE / "assets/laptop", tmp_path / "models/mine")
    return tmp_path / "models/mine"


def other(base: Path) -> None:
    """Other weights, as another CPU's warm start makes them."""
    tensors = {name: value.clone() for name, value in load_file(base / WEIGHTS).items()}
    next(iter(tensors.values())).add_(1e-3)
    save_file(tensors, base / WEIGHTS, metadata={"format": "pt"})
    composed.cache_clear()


def half(base: Path) -> None:
    (base / WEIGHTS).unlink()
    composed.cache_clear()


def gone(base: Path) -> None:
    shutil.rmtree(base)
    composed.cache_clear()


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
    write(tmp_path / "own/experiments/mine.yaml", STUDY + TUNE)
    record_study(folder_of("mine"), finished(tmp_path / "runs"))
    empty = tmp_path / "empty"
    expected, texts = recorded_text(empty), dict[str, str]()
    for change in (other, half, gone):
        change(base)
        texts[change.__name__] = recorded_text(empty)
    assert "not run" not in expected
    assert "stale" not in expected
    assert expected == texts["half"] == texts["gone"]
    assert texts["other"].count(SENTENCE) == 1
    assert texts["other"].replace(f"- {SENTENCE}\n", "") == expected


def test_runs_of_another_base_are_never_shown_beside_those_on_record(base: Path, tmp_path: Path) -> None:
    record_study(folder_of("mine"), finished(tmp_path / "runs"))
    expected = recorded_text(tmp_path / "empty")
    other(base)
    (said,) = other_bases([unit for _, units in plan(tmp_path / "here") for unit in units])
    assert said.startswith("cache:mine is another base on this machine than the one on record")
    here = finished(tmp_path / "here", chance=0.9)
    assert not any((tmp_path / "runs" / unit.id).exists() for _, units in here for unit in units)
    text = recorded_text(tmp_path / "here")
    assert [line for line in text.splitlines() if "±" in line] == [
        line for line in expected.splitlines() if "±" in line
    ]
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
