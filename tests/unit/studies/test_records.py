import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tepo.analysis.tables import read_samples, study_table
from tepo.common.errors import BUSY, UserError
from tepo.common.files import write_json
from tepo.problems.grader.options import REVISION
from tepo.store.cost import Cost
from tepo.store.evaluation_result import SAMPLES, load_result, save_result
from tepo.store.facts import Facts, thinned
from tepo.store.records import CONTENT, FRAMES, check_content, read_frames
from tepo.store.samples_file import read_table, table_of, write_table
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import Planned, plan_all
from tepo.studies.planned_facts import read_facts
from tepo.studies.record_runs import folder_of, record_study, recorded_names
from tests.support.results import facts_of, fall, finish, measure
from tests.support.runs import write
from tests.unit.common.test_files import elsewhere
from tests.unit.studies.test_tune import validate

STUDY = """
title: mine
baseline: GRPO/DAPO
rows:
  - {label: GRPO/DAPO, objective: grpo_dapo}
  - {label: GSPO, objective: gspo}
scales:
  laptop: {models: [laptop], seeds: [0, 1, 2], overrides: [train.steps=2, "data.benchmarks=[add3]"]}
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path / "own/experiments/mine.yaml", STUDY)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path / "own"))
    return tmp_path / "own"


def planned(store: Path, *overrides: str) -> Planned:
    return plan_all(["mine"], "laptop", store=store, overrides=overrides)


def finished(store: Path, *wanted: int) -> Planned:
    """The study with some of its six runs done (none named: all)."""
    ((study, units),) = planned(store)
    for index, unit in enumerate(units):
        if index in (wanted or range(6)):
            score = {"critic/score/mean": 0.123456789 * (1 + index), "training/responses": 8.0, "rollout/prompts": 2.0}
            finish(unit, chance=0.5 + 0.05 * index, **score)
            unit.folder.add_cost(Cost("laptop", str(unit.row.objective), 2, 1, 12.3, 10.0, 1.0, 100, 9.0))
    return [(study, units)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study with all of its runs in a store, and on record."""
    folder = tmp_path_factory.mktemp("written")
    write(folder / "own/experiments/mine.yaml", STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEPO_PATH", str(folder / "own"))
        record_study(folder_of("mine"), finished(folder / "runs"))
    return folder


@pytest.fixture
def recorded(written: Path, own: Path, tmp_path: Path) -> Path:
    """A copy of its records, beside one of the store."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return folder_of("mine")


def read(store: Path, *overrides: str) -> tuple[list[Unit], Facts]:
    ((_, units),), facts = read_facts(planned(store, *overrides), records=True)
    return units, facts


def change(path: Path, at: int, **values: object) -> None:
    """Other values in a row of a file of records."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[at] |= values
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)


# the seam: facts of a store, facts of its records ---------------------------------------------------------------------
def test_a_table_from_records_is_the_one_from_the_store(recorded: Path, own: Path, tmp_path: Path) -> None:
    assert recorded == own / "records" / "mine"
    assert recorded_names("laptop")[0] == "mine"  # the user's own first, then those that ship
    ((study, stored),) = planned(tmp_path / "runs")
    theirs = facts_of(study, stored)
    units, ours = read(tmp_path / "empty")
    assert all(unit.done() and unit.recorded for unit in units)
    assert not (tmp_path / "empty").exists()
    assert read_samples(units, ours).equals(read_samples(stored, theirs))  # to the bit, and so is what is made of them
    shown, expected = study_table(study, units, ours), study_table(study, stored, theirs)
    assert (shown.blocks, shown.comparisons) == (expected.blocks, expected.comparisons)
    assert set(shown.notes) - set(expected.notes) == {"6 of 6 runs read from records, not from the store."}
    for unit in units:
        here, there = ours.of(unit.id), theirs.of(unit.id)
        assert (here.source, here.outcome, here.trained, there.source) == ("record", "finished", 2, "store")
        assert here.costs == there.costs != ()
        assert ours.lasting(unit.id) == theirs.lasting(unit.id) == thinned(theirs.metrics(unit.id))
        assert ours.lasting(unit.id) != theirs.metrics(unit.id), "a record keeps fewer digits"


def test_a_study_that_tunes_is_chosen_and_reported_from_records(own: Path, tmp_path: Path) -> None:
    """Its draws have no benchmarks, and which rows it reports is known only when the records are read: with a shortlist
    in three steps. Counts a problem are kept."""
    short = "shortlist: {after: 1, keep: 1}, space: {train.learning_rate: {log: [3e-5, 1e-3]}}"
    write(own / "experiments/mine.yaml", f"{STUDY}tune: {{draws: 2, seeds: [50, 51], default: true, {short}}}\n")
    lengths = []
    for _ in range(3):
        ((study, units),) = planned(tmp_path / "runs")
        lengths.append(len(units))
        for unit in (unit for unit in units if not unit.done()):
            if unit.tuning:
                count = round(200 * 500 * unit.config.train.learning_rate)  # of four responses to fifty problems
                right = [count // 50 + ((number + unit.seed) % 50 < count % 50) for number in range(50)]
                validate(unit, count / 200, {"add3": right})
            else:
                finish(unit, chance=0.5)
    assert lengths == [8, 10, 16]
    record_study(folder_of("mine"), [(study, units)])
    (again, ours), theirs = read(tmp_path / "empty"), facts_of(study, units)
    assert [unit.id for unit in again] == [unit.id for unit in units]
    assert all(unit.recorded and unit.done() for unit in again)
    for unit in (unit for unit in units if unit.tuning):
        assert ours.of(unit.id).validation == theirs.of(unit.id).validation is not None
    assert study_table(study, again, ours).blocks == study_table(study, units, theirs).blocks
    shutil.rmtree(own / "records")
    assert len(read(tmp_path / "empty")[0]) == lengths[0]


def test_verdicts_of_an_earlier_grader_are_marked(own: Path, tmp_path: Path) -> None:
    """From the store and from its record alike, where revisions meet: rows of one, and rows judged by another."""

    def marked(store: str, *rows: int) -> list[str]:
        units, facts = read(tmp_path / store)
        notes = study_table(study, [units[row] for row in rows], facts).notes
        return [note for note in notes if note.startswith("Judged by")]

    ((study, units),) = finished(tmp_path / "runs")
    for number, folder in enumerate(unit.folder.evaluation("add3") for unit in units):
        said, rows = f"grader {REVISION - (number > 1)} options", read_table(folder / SAMPLES).to_pylist()
        write_table(folder / SAMPLES, table_of([row | {"grader": said} for row in rows]))
        save_result(folder, replace(load_result(folder), grader=said))
    record_study(folder_of("mine"), [(study, units)])
    expected = f"Judged by revisions {REVISION - 1} and {REVISION} of the grader, which agree on generated problems."
    assert marked("runs", *range(6)) == marked("empty", *range(6)) == [expected]
    assert marked("runs", 2, 3) == marked("empty", 2, 3) == []


def test_an_ending_and_the_kind_of_machine_are_kept_and_its_name_is_not(own: Path, tmp_path: Path) -> None:
    ((study, units),) = finished(tmp_path / "runs")
    units[4].folder.forget(1)
    units[4].folder.mark("finished", steps=2, ending={"kind": "collapse", "step": 2, "why": "all wrong"})
    session = {"what": "train", "started": "2026-01-02", "ended": None, "cpu": "Fast", "host": "of-somebody"}
    for unit in units:
        write_json(unit.folder.path / "provenance.json", {"sessions": [session]})
    record_study(folder_of("mine"), [(study, units)])
    again, facts = read(tmp_path / "empty")
    assert [str(facts.of(unit.id).ending) for unit in again] == ["None"] * 4 + ["collapse at step 2", "None"]
    assert facts.of(again[4].id).outcome == "finished: collapse at step 2"
    assert any("collapse at step 2" in note for note in study_table(study, again, facts).notes)
    assert {one["cpu"] for unit in again for one in facts.of(unit.id).made} == {"Fast"}
    assert "of-somebody" not in str([read_frames(folder_of("mine")).runs.to_dict("records")])


# which of the two is read ---------------------------------------------------------------------------------------------
def test_the_store_comes_before_the_records_and_these_only_where_they_are_asked_for(
    recorded: Path, tmp_path: Path
) -> None:
    finished(tmp_path / "other", 0, 3)
    assert [unit.recorded for unit in read(tmp_path / "other")[0]] == [False, True, True, False, True, True]
    ((_, units),) = planned(tmp_path / "empty")
    assert not any(unit.done() or unit.recorded for unit in units)


def test_a_run_of_two_studies_is_known_to_both(recorded: Path, own: Path, tmp_path: Path) -> None:
    """One has its benchmark in the store, the other's are on record alone; one step of a curve is there once."""
    write(own / "experiments/wider.yaml", STUDY.replace("[add3]", "[add3,max4]"))
    store = tmp_path / "runs"
    plan = plan_all(["mine", "wider"], "laptop", store=store)
    for unit in plan[1][1]:
        shutil.copytree(unit.folder.evaluation("add3"), unit.folder.evaluation("max4"))
        result = replace(load_result(unit.folder.evaluation("max4")), benchmark="max4", task={})
        save_result(unit.folder.evaluation("max4"), result)
    for names in (["mine", "wider"], ["wider", "mine"]):  # from the store
        plan = plan_all(names, "laptop", store=store)
        facts = read_facts(plan)[1]
        assert all(facts.has(unit.id, name) for _, units in plan for unit in units for name in ("add3", "max4"))
    record_study(folder_of("wider"), plan[:1])
    for unit in plan[1][1]:
        shutil.rmtree(unit.folder.evaluation("max4"))
    known, facts = read_facts(plan_all(["mine", "wider"], "laptop", store=store), records=True)
    assert [{unit.recorded for unit in units} for _, units in known] == [{False}, {True}]
    for unit in known[1][1]:
        for name in ("add3", "max4"):
            assert len(facts.right(unit.id, name).problems) == 60, "and not twice"
        assert len(facts.metrics(unit.id)) == 2


def test_runs_of_other_settings_are_stale_and_are_replaced(recorded: Path, own: Path, tmp_path: Path) -> None:
    units, facts = read(tmp_path / "empty", "train.steps=3")
    assert [(facts.of(unit.id).stale, unit.recorded) for unit in units] == [(True, False)] * 6
    ((study, _),) = planned(tmp_path / "empty")
    assert any(note.startswith("6 stale records not used") for note in study_table(study, units, facts).notes)
    write(own / "experiments/mine.yaml", STUDY.replace("train.steps=2", "train.steps=3"))
    written = record_study(recorded, finished(tmp_path / "new", 0, 1, 2, 3))
    assert (written.recorded, written.kept, written.missing) == (4, 2, 2)
    units, facts = read(tmp_path / "empty")
    assert sorted(facts.of(unit.id).stale for unit in units) == [False] * 4 + [True] * 2


@pytest.mark.parametrize("what", ["recipe", "fingerprint", "grading"])
def test_records_of_another_recipe_or_benchmark_are_stale(recorded: Path, tmp_path: Path, what: str) -> None:
    scores = pq.read_table(recorded / "scores.parquet").slice(0, 1).to_pylist()[0]
    runs = pq.read_table(recorded / "runs.parquet")["run"].to_pylist()
    if what == "recipe":
        change(recorded / "runs.parquet", runs.index(scores["run"]), recipe=2)
    else:
        change(recorded / "scores.parquet", 0, task=json.dumps({**json.loads(scores["task"]), what: "another"}))
    units, facts = read(tmp_path / "empty")
    assert [unit.id for unit in units if facts.of(unit.id).stale] == [scores["run"]]
    assert [unit.id for unit in units if not unit.done()] == [scores["run"]]


# writing --------------------------------------------------------------------------------------------------------------
State = dict[str, tuple[bytes, int]]


def state(folder: Path) -> State:
    """Bytes and inodes: a file that is written anew has another one."""
    return {file.name: (file.read_bytes(), file.stat().st_ino) for file in folder.iterdir()}


def contents(files: State) -> dict[str, bytes]:
    return {name: data for name, (data, _) in files.items()}


def test_parts_of_a_study_are_put_together_and_the_same_content_keeps_its_files(own: Path, tmp_path: Path) -> None:
    folder = folder_of("mine")
    first = record_study(folder, finished(tmp_path / "one", 0, 1))
    assert (first.recorded, first.kept, first.missing) == (2, 0, 4)
    second = record_study(folder, finished(tmp_path / "two", 1, 2, 3, 4, 5))
    assert (second.recorded, second.kept, second.missing) == (5, 1, 0)
    together = state(folder)
    assert set(together) == {CONTENT, *(f"{name}.parquet" for name in FRAMES)}
    assert record_study(folder, planned(tmp_path / "two")).kept == 1
    assert record_study(folder, planned(tmp_path / "empty")).kept == 6
    assert state(folder) == together, "not a file is touched"
    shutil.rmtree(folder)
    for store in ("two", "one"):
        record_study(folder, planned(tmp_path / store))
    assert contents(state(folder)) == contents(together), "whatever the order"
    check_content(folder)


def test_a_run_that_was_trained_again_elsewhere_does_not_change_what_is_on_record(
    recorded: Path, own: Path, tmp_path: Path
) -> None:
    """Not even for a study whose folder is read before. The same training is recorded for both."""
    write(own / "experiments/before.yaml", STUDY)
    for unit in finished(tmp_path / "again")[0][1]:
        session = {"what": "train", "started": "2026-01-03T10:00:00+00:00"}
        write_json(unit.folder.path / "provenance.json", {"sessions": [session]})

    def record(store: str) -> tuple[int, int, int]:
        written = record_study(folder_of("before"), plan_all(["before"], "laptop", store=tmp_path / store))
        return written.recorded, written.missing, written.elsewhere

    assert record("again") == (0, 0, 6)
    assert not folder_of("before").exists()
    again = plan_all(["before"], "laptop", store=tmp_path / "again")
    assert record_study(tmp_path / "apart", again).recorded == 6, "a folder that no command reads changes nothing"
    change(recorded / "runs.parquet", 0, recipe=2)
    assert record("again") == (1, 0, 5), "what is stale there is recorded here"
    shutil.rmtree(folder_of("before"))
    record_study(recorded, planned(tmp_path / "runs"))
    assert record("runs") == (6, 0, 0)
    assert record_study(recorded, planned(tmp_path / "again")).recorded == 6, "a folder's own runs are taken anew"


def test_one_process_at_a_time_writes_a_folder(own: Path, tmp_path: Path) -> None:
    """Else one of two parts would be lost."""
    folder, plan = folder_of("mine"), finished(tmp_path / "runs", 0)
    with (
        elsewhere(f"exclusive(Path({str(folder.with_name('mine.write'))!r}))"),
        pytest.raises(UserError, match="another process writes this") as caught,
    ):
        record_study(folder, plan)
    assert caught.value.exit_code == BUSY
    assert not folder.exists()
    assert record_study(folder, plan).recorded == 1
    assert list(folder.parent.iterdir()) == [folder]


# damage ---------------------------------------------------------------------------------------------------------------
def flip(path: Path) -> None:
    """A bit in the first page of values."""
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("runs", Path.unlink, "the file is missing"),
        ("curves", lambda path: path.write_bytes(path.read_bytes()[:-20]), "Parquet"),
        ("scores", flip, "CRC|checksum|[Cc]orrupt|damaged"),
        ("scores", partial(change, at=9, right=5), "right answers of more samples than there are"),
        ("runs", partial(change, at=2, ending='{"kind": "late"}'), "ending of run [0-9a-f]+: "),
    ],
)
def test_a_damaged_folder_is_named(
    recorded: Path, tmp_path: Path, name: str, spoil: Callable[[Path], object], message: str
) -> None:
    before, path = state(recorded), recorded / f"{name}.parquet"
    spoil(path)
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path / "empty")
    assert caught.value.what.startswith("the records are damaged: ")
    assert (caught.value.where, caught.value.exit_code) == (str(path), 2)
    if " of run " not in message:  # of the runs that are recorded anew nothing old is needed
        with pytest.raises(UserError):
            record_study(recorded, planned(tmp_path / "runs"))
    changed = {file for file, now in state(recorded).items() if before[file] != now}
    assert changed <= {path.name}, "nothing else was written"


def test_values_that_nobody_wrote_are_found_and_go_when_the_truth_is_written(recorded: Path, tmp_path: Path) -> None:
    check_content(recorded)
    truth = state(recorded)
    change(recorded / "scores.parquet", 0)  # another writer's bytes, the same content
    assert (recorded / "scores.parquet").read_bytes() != truth["scores.parquet"][0]
    check_content(recorded)
    change(recorded / "scores.parquet", 0, right=0)
    with pytest.raises(UserError, match="not those that were written") as caught:
        check_content(recorded)
    assert caught.value.where == str(recorded)
    record_study(recorded, planned(tmp_path / "runs"))
    check_content(recorded)
    assert contents(state(recorded)) == contents(truth)


# what was said before and after a fall --------------------------------------------------------------------------------
REWARDS = (0.3, 0.4, 0.21, 0.05)
HOSTILE = "</script><script>alert(1)</script>\u2028'\""


def fallen(store: Path, rewards: tuple[float, ...] = REWARDS, said: str = "9") -> Unit:
    """One of the runs, which trained these rewards and fell."""
    unit = planned(store)[0][1][4]
    fall(unit, rewards, said)
    measure(unit, 0.1)
    return unit


def test_before_is_the_last_step_with_half_of_the_highest_reward_and_after_the_last(own: Path, tmp_path: Path) -> None:
    excerpt = fallen(tmp_path).folder.excerpt()
    assert excerpt
    assert [(one.dump.step, one.reward) for one in (excerpt.before, excerpt.after)] == [(3, 0.21), (4, 0.05)]
    assert str(excerpt.ending) == "collapse at step 5"
    said = ["".join(one.tokens) for one in excerpt.before.dump.responses]
    assert said == ["309", "509", "709", "319"], "the first to each prompt as they were drawn, then the second ones"
    assert excerpt.before.dump.responses[0].values == {"entropy": [0.123] * 3, "entropy_change": [-0.5, 0.5, 0.0]}


@pytest.mark.parametrize("rewards", [(0.3, 0.72, 0.49, 0.34), (0.3, 0.35, 0.2), REWARDS])
def test_a_run_that_did_not_fall_or_lacks_the_dumps_has_none(
    own: Path, tmp_path: Path, rewards: tuple[float, ...]
) -> None:
    """One low step at the end is no fall."""
    unit = fallen(tmp_path, rewards)
    if rewards == REWARDS:
        unit.folder.tokens(4).unlink()
    assert unit.folder.excerpt() is None


def test_a_record_gives_back_the_excerpt_and_a_damaged_one_is_named(own: Path, tmp_path: Path) -> None:
    unit = fallen(tmp_path / "runs", said=HOSTILE)
    record_study(folder_of("mine"), planned(tmp_path / "runs"))
    excerpt = read(tmp_path / "empty")[1].of(unit.id).excerpt
    assert excerpt == unit.folder.excerpt()
    assert "".join(excerpt.after.dump.responses[0].tokens) == f"30{HOSTILE}"
    path = folder_of("mine") / "runs.parquet"
    value = json.loads(pq.read_table(path)["excerpt"][0].as_py())
    value["before"]["responses"][0]["tokens"].pop()
    change(path, 0, excerpt=json.dumps(value))
    with pytest.raises(UserError, match=f"excerpt of run {unit.id}") as caught:
        read(tmp_path / "empty")
    assert caught.value.where == str(path)
