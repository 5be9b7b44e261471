import json
from functools import cache
from pathlib import Path

import pytest

from tepo.analysis.charts import looks_of
from tepo.objectives import load_objective
from tepo.problems.benchmarks import load_benchmark
from tepo.reporting.printed import load_table
from tepo.store.records import CONTENT, check_content, read_frames, write_frames
from tepo.store.stored_tokens import pack_excerpt
from tepo.studies.plan_studies import plan_all
from tepo.studies.planned_facts import read_facts, record_folders
from tepo.studies.record_runs import plan_by_folder, recorded_names
from tepo.studies.study import SCALES, load_study, study_names
from tests.support.results import table_from_store
from tests.unit.reporting.printed_tables import file

LANGUAGE = {"small_lm": "language_model", "smollm2": "language_pilot"}  # scale: the study that is of it alone


@cache
def _objective(mapping: str) -> str:
    """The name of an objective that is written as JSON: rows of many studies, models and seeds have the same."""
    return load_objective(json.loads(mapping)).name


@pytest.mark.parametrize(
    "scale", [*SCALES, *LANGUAGE]
)  # one test a scale: compositions (a tenth of a second each) are shared between studies
def test_every_row_composes_and_its_objective_loads(scale: str, tmp_path: Path) -> None:
    names = [name for name in study_names() if name not in LANGUAGE.values()]
    if scale in LANGUAGE:  # of the others a few ask for models that nothing stands in for
        names = ["panel_e", LANGUAGE[scale]]
    planned = plan_all(names, scale, store=tmp_path)
    assert {study.name for study, _ in planned} == {name for name in names if not load_study(name).panels}
    for study, units in planned:
        chosen, tune = study.scale(scale), study.tune_at(scale)
        seeds = [  # in an empty store nothing is chosen, so nothing is reported
            1 if row.base else len(tune.seeds_of(row.setting) if tune else chosen.seeds) for row in study.rows_at(scale)
        ]
        assert len(units) == len(chosen.models) * sum(seeds) > 0
        for unit in units:  # what a run looks up when it starts
            assert unit.row.base or _objective(json.dumps(unit.config.objective)) == unit.row.objective
            if not any(word.startswith("model.path=") for word in unit.row.setting.overrides):
                assert unit.model == unit.config.model.name
        for name in {name for unit in units for name in unit.config.data.benchmarks}:
            assert load_benchmark(name).name == name
        if study.rows[0].reference is not None:
            assert table_from_store(study, units).blocks[-1].title.startswith("As printed")


@pytest.mark.parametrize(
    ("scale", "words", "steps"),
    [("laptop", (), (36, 66, 36)), ("paper", (), (72, 132, 72)), ("laptop", ("train.steps=5",), (5, 5, 5))],
)
def test_a_label_says_how_many_steps_were_run(scale: str, words: tuple[str], steps: tuple[int], tmp_path: Path) -> None:
    """Table 4's laptop rows used to say 72 steps, the paper's number, of runs of 36."""
    ((study, units),) = plan_all(["table4"], scale, store=tmp_path, overrides=words)
    measured, *_, printed = table_from_store(study, units).blocks
    names = ("GRPO/DAPO", "GRPO/DAPO, longer", "TEPO")
    assert [row.label for row in measured.rows] == [f"{name} ({n} steps)" for name, n in zip(names, steps, strict=True)]
    assert [row.cells[-1].text for row in measured.rows] == ["baseline", "", ""]
    means = [row.label for row in load_table(file("table4")) if row.kind == "mean"]
    assert [row.label for row in printed.rows] == means
    assert list(looks_of(units)) == [row.label for row in measured.rows], "in charts"


@pytest.mark.slow  # of every value the content is hashed
def test_shipped_records_are_small_as_they_were_written_and_name_no_machine(tmp_path: Path) -> None:
    folders = record_folders()
    assert sum(file.stat().st_size for folder in folders for file in folder.iterdir()) < 8_000_000  # bytes
    for folder in folders:
        check_content(folder)
        frames = read_frames(folder)
        runs = set(frames.runs["run"])
        assert not frames.runs["made"].str.contains('"host"').any()
        assert not frames.runs["excerpt"].str.contains('"host"', na=False).any()
        assert set(frames.curves["run"]) | set(frames.scores["run"]) <= runs != set()
    (lengths,) = (folder for folder in folders if folder.name == "lengths")
    write_frames(tmp_path / "lengths", read_frames(lengths))
    assert (tmp_path / "lengths" / CONTENT).read_text() == (lengths / CONTENT).read_text(), "what is read is written"


def test_shipped_records_are_of_today(tmp_path: Path) -> None:
    """A change of the recipe, a study, a benchmark or the base makes them stale: then they are to be made anew."""
    scales = ("laptop", "small_lm", "smollm2")
    plans = {scale: plan_by_folder(recorded_names(scale), scale, tmp_path) for scale in scales}
    assert set().union(*plans.values()) == {folder.name for folder in record_folders()}
    assert plans["laptop"].keys() >= {"stability", "claims-1"}
    assert plans["small_lm"].keys() == {"language_model", "claims-6"}
    for plan in plans.values():  # all folders of a scale at once: many hold runs of one another
        folders = [name for name, of in plan.items() for _ in of]
        planned, facts = read_facts([pair for of in plan.values() for pair in of], records=True)
        for name in plan:
            units = [unit for folder, (_, of) in zip(folders, planned, strict=True) if folder == name for unit in of]
            assert [unit.label for unit in units if facts.of(unit.id).stale] == [], name
            assert any(unit.recorded for unit in units), name
            runs = facts.runs[facts.runs["run"].isin([unit.id for unit in units])]
            quoted = {run.run: run.excerpt for run in runs.itertuples(index=False) if run.excerpt}
            assert bool(quoted) == name.startswith(("stability", "claims-6"))  # of claims-6 what collapsed
            for excerpt in quoted.values():
                assert len(json.dumps(pack_excerpt(excerpt))) < 40_000
