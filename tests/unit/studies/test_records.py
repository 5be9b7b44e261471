"""Records of runs: the same table without the store, parts of a study put together, and records that do not count."""

import json
import lzma
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from tepo.store.records.archive import read_records, write_records
from tepo.studies.records.read import file_of, plan_by_file, record_files, recorded_names, with_records
from tepo.studies.records.write import record_study

from tepo.analysis.claim_outcomes import judge_claims
from tepo.analysis.claims_table import claims_table
from tepo.analysis.tables import read_samples, study_table
from tepo.common import paths
from tepo.common.errors import BUSY, UserError
from tepo.common.files import write_json
from tepo.launch.run_units import spent
from tepo.problems.grader.options import REVISION
from tepo.store.cost import Cost
from tepo.store.evaluation_result import SAMPLES, load_result, save_result
from tepo.store.samples_file import read_table, table_of, write_table
from tepo.studies.claims import load_claims, study_of
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import Planned, plan_all, plan_studies
from tests.unit.common.test_files import elsewhere
from tests.unit.studies.measured import finish
from tests.unit.studies.test_claims import text
from tests.unit.studies.test_tune import validate
from tests.unit.training.small import write

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
    folder = tmp_path / "own"
    write(folder / "experiments/mine.yaml", STUDY)
    monkeypatch.setenv("TEPO_PATH", str(folder))
    return folder


def planned(store: Path, *overrides: str) -> list[tuple]:
    return plan_all(["mine"], "laptop", store=store, overrides=overrides)


def finished(store: Path, *wanted: int) -> Planned:
    """The study with some of its six runs done (none named: all)."""
    plan = planned(store)
    ((study, units),) = plan
    for index, unit in enumerate(units):
        if index in (wanted or range(6)):
            finish(unit, chance=0.5 + 0.05 * index)
            unit.run.add_cost(Cost("laptop", str(unit.row.objective), 2, 1, 12.3, 10.0, 1.0, 100, 9.0))
    return [(study, units)]


@pytest.fixture
def recorded(own: Path, tmp_path: Path) -> Path:
    record_study(file_of("mine"), finished(tmp_path / "runs"))
    return file_of("mine")


def read(store: Path, *overrides: str) -> list[Unit]:
    ((_, units),) = with_records(planned(store, *overrides), "laptop")
    return units


def test_a_study_that_tunes_is_chosen_and_reported_from_records(own: Path, tmp_path: Path) -> None:
    """Its draws have no benchmarks, and which rows it reports is known only when the records are read."""
    tune = "tune: {draws: 2, seeds: [50], space: {train.learning_rate: {log: [3e-5, 1e-3]}}}\n"
    (own / "experiments" / "mine.yaml").write_text(STUDY + tune)
    plan = planned(tmp_path / "runs")
    for _, units in plan:
        for unit in units:
            validate(unit, share=float(unit.row.setting.point["learning_rate"]) * 500)
    for unit in (reported := [unit for _, units in planned(tmp_path / "runs") for unit in units if not unit.tuning]):
        finish(unit, chance=0.5)
    assert len(reported) == 6
    ((study, units),) = planned(tmp_path / "runs")
    record_study(file_of("mine"), [(study, units)])
    again = read(tmp_path / "empty")
    assert [unit.id for unit in again] == [unit.id for unit in units]
    assert all(unit.record and unit.done() for unit in again)
    assert study_table(study, "laptop", again).blocks == study_table(study, "laptop", units).blocks
    (own / "records" / "mine.jsonl.xz").unlink()
    assert len(read(tmp_path / "empty")) == 4


def test_a_sweep_shows_the_realised_kl_of_its_cells_from_records_too(own: Path, tmp_path: Path) -> None:
    """The mean over seeds and steps, in the digits that a record keeps; a row of which nothing is known has a dash."""
    sweep = "realised_kl: true\nvary: {train.learning_rate: [1e-4, 4e-4], train.epochs: [1, 2]}\n"
    (own / "experiments" / "mine.yaml").write_text(STUDY + sweep)
    ((study, units),) = planned(tmp_path / "runs")
    for unit in units:
        if unit.row.label == "GSPO" and unit.row.setting.point["epochs"] == "2":
            continue
        step = 0.01234 * (1 + unit.seed) * unit.config.train.epochs
        finish(unit, 0.5, **{"actor/realised_kl_k3": step * (2 if unit.config.train.learning_rate > 2e-4 else 1)})
    record_study(file_of("mine"), [(study, units)])
    ours, theirs = (study_table(study, "laptop", part).blocks for part in (units, read(tmp_path / "empty")))
    assert ours == theirs
    found = {block.title: block for block in ours if block.title.startswith("Realised KL")}
    assert not any(block.axis for block in found.values()), "figures and maps would take it for accuracy"
    assert list(found) == ["Realised KL by learning_rate, epochs=1", "Realised KL by learning_rate, epochs=2"]
    shown = [[[cell.text for cell in row.cells] for row in block.rows] for block in found.values()]
    assert shown == [[["0.0247", "0.0493"]] * 2, [["0.0493", "0.0993"], ["", ""]]]


def test_every_phase_of_tuning_is_read_from_records_with_counts_a_problem(own: Path, tmp_path: Path) -> None:
    tune = "tune: {draws: 3, seeds: [50, 51], default: true, shortlist: {after: 1, keep: 1}, space: {%s}}\n"
    (own / "experiments" / "mine.yaml").write_text(STUDY + tune % "train.learning_rate: {log: [3e-5, 1e-3]}")
    lengths = []
    for _ in range(3):
        ((study, units),) = planned(tmp_path / "runs")
        lengths.append(len(units))
        for unit in units:
            if unit.tuning and not unit.done():
                count = round(200 * 500 * unit.config.train.learning_rate)  # of four responses to fifty problems
                right = [count // 50 + ((number + unit.seed) % 50 < count % 50) for number in range(50)]
                validate(unit, count / 200, {"add3": right})
            elif not unit.done():
                finish(unit, chance=0.5)
    assert lengths == [2 * (2 + 3), 2 * (2 + 3 + 1), 2 * (2 + 3 + 1 + 3)]
    record_study(file_of("mine"), [(study, units)])
    again = read(tmp_path / "empty")
    assert [unit.id for unit in again] == [unit.id for unit in units]
    assert all(unit.record and unit.done() for unit in again)
    assert [unit.run.validated() for unit in again] == [unit.run.validated() for unit in units]
    ours, theirs = (study_table(study, "laptop", part) for part in (units, again))
    assert ours.blocks == theirs.blocks
    assert ours.blocks[-1].title.startswith("Noise of choosing")


def test_verdicts_of_an_earlier_grader_are_marked_but_for_generated_problems(own: Path, tmp_path: Path) -> None:
    """From the store and from its record alike. `finish` writes a fingerprint that is of no revision. Generated
    problems are marked where revisions meet: records of one, and runs that are judged by another."""

    def marked(units: list[Unit]) -> list[str]:
        return [note for note in study_table(study, "laptop", units).notes if note.startswith("Judged by")]

    def judge(units: list[Unit], name: str, revision: int) -> None:
        for folder in (unit.run.evaluation(name) for unit in units):
            said, table = f"grader {revision} options", read_table(folder / SAMPLES)
            rows = [row | {"grader": said} for row in table.to_pylist()]
            write_table(folder / SAMPLES, table_of(rows))
            save_result(folder, replace(load_result(folder), grader=said))

    record_study(file_of("mine"), finished(tmp_path / "runs"))
    ((study, units),) = planned(tmp_path / "runs")
    assert not marked(units)
    assert not marked(read(tmp_path / "empty"))
    judge(units, "add3", REVISION - 1)
    judge(units[:2], "add3", REVISION)
    expected = f"Judged by revisions {REVISION - 1} and {REVISION} of the grader, which agree on generated problems."
    record_study(file_of("mine"), [(study, units)])
    for several in (units, read(tmp_path / "empty")):
        assert marked(several) == [expected]
        assert not marked(several[2:])
    write(own / "evals/few.jsonl", '{"id": "p0", "problem": "1+1=", "answer": "2"}\n')
    (own / "evals" / "few.yaml").write_text(
        "{title: few, dataset: {path: few.jsonl}, count: 1, samples: 4, temperature: 1.0, max_new_tokens: 9}"
    )
    (own / "experiments" / "mine.yaml").write_text(STUDY.replace("add3", "few"))
    record_study(file_of("mine"), finished(tmp_path / "more"))
    ((study, units),) = planned(tmp_path / "more")
    for several in (units, read(tmp_path / "empty")):
        (note,) = marked(several)
        assert note.startswith(f"Judged by another revision of the grader, today's is {REVISION}: few.")
    judge(units, "few", REVISION - 1)
    assert marked(units)[0].startswith(f"Judged by revision {REVISION - 1} of the grader, today's is {REVISION}: few.")


def test_a_table_from_records_is_the_one_from_the_store(recorded: Path, own: Path, tmp_path: Path) -> None:
    assert recorded == own / "records" / "mine.jsonl.xz"
    assert recorded_names()[0] == "mine"  # the user's own first, then those that ship
    ((study, stored),) = planned(tmp_path / "runs")
    units = read(tmp_path / "empty")
    assert all(unit.done() and unit.record for unit in units)
    assert not (tmp_path / "empty").exists()
    assert read_samples(units).equals(read_samples(stored))  # to the bit, and so is all that is made from them
    ours, theirs = study_table(study, "laptop", units), study_table(study, "laptop", stored)
    assert ours.blocks == theirs.blocks
    assert ours.comparisons == theirs.comparisons
    assert set(ours.notes) - set(theirs.notes) == {"6 of 6 runs read from records, not from the store."}
    for unit, old in zip(units, stored, strict=True):
        assert unit.run.outcome() == "finished"
        ours, theirs = (one.run.sessions(one.benchmarks) for one in (unit, old))
        assert [one["started"] for one in ours] == [one["started"] for one in theirs]
    assert spent(units) == spent(stored) != ""


def test_without_asking_for_records_nothing_is_read_from_them(recorded: Path, tmp_path: Path) -> None:
    ((_, units),) = planned(tmp_path / "empty")
    assert not any(unit.done() or unit.record for unit in units)


def test_the_store_comes_before_the_records(recorded: Path, tmp_path: Path) -> None:
    finished(tmp_path / "other", 0, 3)
    assert [unit.record is None for unit in read(tmp_path / "other")] == [True, False, False, True, False, False]


def test_a_record_does_not_name_the_machine(own: Path, tmp_path: Path) -> None:
    store = tmp_path / "runs"
    ((study, units),) = finished(store)
    for unit in units:
        session = {"what": "train", "started": "2026-01-02", "ended": None, "cpu": "Fast", "host": "of-somebody"}
        write_json(unit.run.path / "provenance.json", {"sessions": [session]})
    record_study(file_of("mine"), [(study, units)])
    for record in read_records(file_of("mine")):
        assert [one.get("cpu") for one in record.made] == ["Fast"]
        assert "of-somebody" not in str(record)


def test_an_ending_is_kept(own: Path, tmp_path: Path) -> None:
    ((study, units),) = finished(tmp_path / "runs")
    ending = {"kind": "collapse", "step": 2, "why": "all wrong"}
    units[4].run.forget(1)
    units[4].run.mark("finished", steps=2, ending=ending)
    record_study(file_of("mine"), [(study, units)])
    again = read(tmp_path / "empty")
    assert [str(unit.run.ending()) for unit in again] == ["None"] * 4 + ["collapse at step 2", "None"]
    assert again[4].run.outcome() == "finished: collapse at step 2"
    assert any("collapse at step 2" in note for note in study_table(study, "laptop", again).notes)


def test_parts_of_a_study_are_put_together(own: Path, tmp_path: Path) -> None:
    path = file_of("mine")
    first = record_study(path, finished(tmp_path / "one", 0, 1))
    assert (first.recorded, first.kept, first.missing) == (2, 0, 4)
    second = record_study(path, finished(tmp_path / "two", 1, 2, 3, 4, 5))
    assert (second.recorded, second.kept, second.missing) == (5, 1, 0)
    together = path.read_bytes()
    path.unlink()
    record_study(path, planned(tmp_path / "two"))
    record_study(path, planned(tmp_path / "one"))
    assert path.read_bytes() == together  # whatever the order
    assert record_study(path, planned(tmp_path / "empty")).kept == 6
    assert path.read_bytes() == together


def test_one_process_at_a_time_writes_a_file(own: Path, tmp_path: Path) -> None:
    """Else one of two parts would be lost."""
    path, plan = file_of("mine"), finished(tmp_path / "runs", 0)
    with (
        elsewhere(f"exclusive(Path({str(path)!r}))"),
        pytest.raises(UserError, match="another process writes this") as caught,
    ):
        record_study(path, plan)
    assert caught.value.exit_code == BUSY
    assert not path.exists()
    assert record_study(path, plan).recorded == 1
    assert list(path.parent.iterdir()) == [path]


def test_runs_of_other_settings_are_stale_and_are_replaced(recorded: Path, own: Path, tmp_path: Path) -> None:
    units = read(tmp_path / "empty", "train.steps=3")
    assert [unit.stale for unit in units] == [True] * 6
    assert not any(unit.record for unit in units)
    ((study, _),) = planned(tmp_path / "empty")
    assert any(note.startswith("6 stale records not used") for note in study_table(study, "laptop", units).notes)

    (own / "experiments" / "mine.yaml").write_text(STUDY.replace("train.steps=2", "train.steps=3"))
    written = record_study(recorded, finished(tmp_path / "new", 0, 1, 2, 3))
    assert (written.recorded, written.kept, written.missing) == (4, 2, 2)
    assert sorted(unit.stale for unit in read(tmp_path / "empty")) == [False] * 4 + [True] * 2


@pytest.mark.parametrize("what", ["recipe", "fingerprint", "grading", "content_hash", "wrap"])
def test_records_of_another_recipe_or_benchmark_are_stale(recorded: Path, tmp_path: Path, what: str) -> None:
    records = read_records(recorded)
    first = records[0]
    if what == "recipe":
        other = replace(first, recipe=first.recipe - 1)
    else:
        verdicts = first.verdicts["add3"]
        on = replace(verdicts.on, task={**verdicts.on.task, what: "another"})
        other = replace(first, verdicts={"add3": replace(verdicts, on=on)})
    write_records(recorded, [other, *records[1:]])
    units = read(tmp_path / "empty")
    assert [unit.stale for unit in units] == [unit.id == first.id for unit in units]
    assert [unit.done() for unit in units] == [unit.id != first.id for unit in units]


def test_a_record_without_a_wanted_benchmark_is_stale(recorded: Path, tmp_path: Path) -> None:
    units = read(tmp_path / "empty", "data.benchmarks=[add3,max4]")
    assert all(unit.stale and not unit.done() for unit in units)


def test_a_run_without_benchmarks_has_a_record(own: Path, tmp_path: Path) -> None:
    ((study, units),) = finished(tmp_path / "runs")
    bare = [replace(unit, config=replace(unit.config, data=replace(unit.config.data, benchmarks=[]))) for unit in units]
    assert record_study(tmp_path / "bare.jsonl.xz", [(study, bare)]).recorded == 6
    back = read_records(tmp_path / "bare.jsonl.xz")
    assert all(not one.verdicts and len(one.metrics()) == 2 for one in back)


def test_many_samples_a_problem(recorded: Path) -> None:
    first, *_ = read_records(recorded)
    verdicts = first.verdicts["add3"]
    wide = replace(verdicts, on=replace(verdicts.on, samples=32), right=tuple(index % 33 for index in range(60)))
    write_records(recorded, [replace(first, verdicts={"add3": wide})])
    (back,) = read_records(recorded)
    assert back.right_answers("add3") == replace(first, verdicts={"add3": wide}).right_answers("add3")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda line: line[:-9], "line 3 of the records is damaged"),
        (lambda line: line.replace('"seed"', '"sead"'), "seed"),
        (lambda line: "[" * 5000, "nested more than 100 deep"),
        (lambda line: json.dumps({**json.loads(line), "ending": {"kind": "late"}}), "the ending is not"),
        (lambda line: "[1, 2]", "line 3 of the records is damaged"),
        (lambda line: json.dumps({**json.loads(line), "right": {"nothing": "44"}}), "nothing"),
        (lambda line: _with_right(line, "44"), "not one count up to 4 a problem"),
        (lambda line: _with_right(line, "9" * 60), "not one count up to 4 a problem"),
        (lambda line: json.dumps({**json.loads(line), "cost": [{"who": 1}]}), "who"),
    ],
)
def test_a_damaged_line_is_named(recorded: Path, tmp_path: Path, spoil, message: str) -> None:
    lines = lzma.decompress(recorded.read_bytes()).decode().splitlines()
    assert lines[2].startswith('{"run"')
    lines[2] = spoil(lines[2])
    recorded.write_bytes(lzma.compress("\n".join(lines).encode()))
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path / "empty")
    assert f"{recorded}, line 3" in str(caught.value)


def _with_right(line: str, right: str) -> str:
    value = json.loads(line)
    return json.dumps({**value, "right": dict.fromkeys(value["right"], right)})


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-20], lambda data: b"who", lambda data: data[:40] + b"!" + data[41:]]
)
def test_a_damaged_file_is_named(recorded: Path, tmp_path: Path, spoil) -> None:
    recorded.write_bytes(spoil(recorded.read_bytes()))
    with pytest.raises(UserError, match="the file of records is damaged") as caught:
        read(tmp_path / "empty")
    assert str(recorded) in str(caught.value)


def test_a_separator_of_lines_inside_a_label_ends_no_line(recorded: Path) -> None:
    records = [replace(one, label=f"a\u2028b\x85c\x0c{one.label}") for one in read_records(recorded)]
    write_records(recorded, records)
    assert {one.label for one in read_records(recorded)} == {one.label for one in records}


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(recorded: Path) -> None:
    """A gigabyte of zeros is 160 kB."""
    recorded.write_bytes(16 * lzma.compress(bytes(64 << 20), preset=0))
    assert recorded.stat().st_size < 180_000
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="the file of records holds more than 64 MiB") as caught:
            read_records(recorded)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.where == str(recorded)
    assert peak < 256 << 20


def test_a_users_file_stands_in_front_of_a_shipped_one(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "shipped", lambda kind: tmp_path / "shipped" / kind)
    (tmp_path / "shipped" / "records").mkdir(parents=True)
    for name in ("mine", "other"):
        (tmp_path / "shipped" / "records" / f"{name}.jsonl.xz").write_bytes(recorded.read_bytes())
    assert record_files() == [recorded, tmp_path / "shipped" / "records" / "other.jsonl.xz"]


def test_claims_are_judged_from_records(own: Path, tmp_path: Path) -> None:
    (own / "experiments" / "claims.yaml").write_text(text("first"))
    plan = plan_by_file(["claims"], "laptop", tmp_path / "runs")
    ((_, units),) = plan["claims"]
    for unit in units:
        finish(unit, chance=0.5 if unit.row.objective == "grpo_dapo" else 0.8)
        session = {"what": "train", "started": "2026-01-02T10:00:00+00:00", "ended": "2026-01-02T10:01:00+00:00"}
        write_json(unit.folder / "provenance.json", {"sessions": [session]})
    record_study(file_of("claims"), plan["claims"])
    claims = load_claims()
    empty = plan_studies([study_of(claim) for claim in claims.testable], "laptop", store=tmp_path / "empty")
    ((_, again),) = with_records(empty, "laptop")
    stored, shown = (claims_table(claims, judge_claims(claims, [part]), []) for part in (units, again))
    assert shown.blocks == stored.blocks
    assert "holds" in [cell.text for cell in shown.blocks[0].rows[0].cells]
    assert any("2026-01-02" in cell.text for cell in shown.blocks[0].rows[0].cells)
    assert "16 of 16 runs read from records, not from the store." in shown.notes
