"""Excerpts of runs that fell: which steps and responses they hold, and that records keep them and stay as they are."""

import json
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.store.excerpt import Excerpt
from tepo.store.facts import Facts
from tepo.store.records import read_frames, write_frames
from tepo.studies.fallen import record_excerpts
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import plan_all
from tepo.studies.planned_facts import read_facts
from tepo.studies.record_runs import folder_of, record_study
from tests.unit.studies.measured import fall, finish, measure
from tests.unit.training.small import write

STUDY = """
title: rates
rows:
  - {label: GPG, objective: gpg}
  - {label: GSPO, objective: gspo}
scales:
  laptop:
    models: [laptop]
    seeds: [0]
    vary: {train.learning_rate: [1e-4, 1e-3]}
    overrides: [train.steps=4, "data.benchmarks=[add3]"]
"""
REWARDS = (0.3, 0.4, 0.21, 0.05)
HOSTILE = "</script><script>alert(1)</script>\u2028'\""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path / "own/experiments/rates.yaml", STUDY)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path / "own"))
    return folder_of("rates")


def planned(store: Path) -> list[tuple]:
    return plan_all(["rates"], "laptop", store=store)


def fallen_run(store: Path) -> Unit:
    """GPG at the large rate."""
    return next(unit for _, units in planned(store) for unit in units if unit.label == "GPG, learning_rate=1e-3")


def recorded(path: Path, store: Path, said: str = "9") -> None:
    """All four runs on record, of which one fell."""
    for _, units in planned(store):
        for unit in units:
            if unit.id == fallen_run(store).id:
                fall(unit, REWARDS, said)
                measure(unit, 0.1)
            else:
                finish(unit, 0.5)
    record_study(path, planned(store))


def known(store: Path) -> Facts:
    return read_facts(planned(store), "laptop", records=True)[1]


def excerpts(store: Path) -> list[Excerpt]:
    """On record: the store is empty."""
    return [one for one in known(store).runs["excerpt"] if one]


def test_before_is_the_last_step_with_half_of_the_highest_reward_and_after_the_last(own: Path, tmp_path: Path) -> None:
    unit = fallen_run(tmp_path)
    fall(unit, REWARDS)
    excerpt = unit.in_store.excerpt()
    assert excerpt
    assert [(one.dump.step, one.reward) for one in (excerpt.before, excerpt.after)] == [(3, 0.21), (4, 0.05)]
    assert str(excerpt.ending) == "collapse at step 5"
    said = ["".join(one.tokens) for one in excerpt.before.dump.responses]
    assert said == ["309", "509", "709", "319"], "the first to each prompt as they were drawn, then the second ones"
    assert excerpt.before.dump.responses[0].values == {"entropy": [0.123] * 3, "entropy_change": [-0.5, 0.5, 0.0]}


@pytest.mark.parametrize(("rewards", "missing"), [((0.3, 0.35, 0.2), ()), (REWARDS, (4,)), (REWARDS, (1, 2, 3))])
def test_a_run_that_did_not_fall_or_lacks_the_dumps_has_none(
    own: Path, tmp_path: Path, rewards: tuple[float, ...], missing: tuple[int, ...]
) -> None:
    unit = fallen_run(tmp_path)
    fall(unit, rewards)
    for step in missing:
        unit.in_store.tokens(step).unlink()
    assert unit.in_store.excerpt() is None


def test_a_record_gives_back_what_the_store_had_and_is_otherwise_as_it_was(own: Path, tmp_path: Path) -> None:
    recorded(own, tmp_path / "runs", HOSTILE)
    before = read_frames(own)
    wanted = fallen_run(tmp_path / "runs").in_store.excerpt()
    assert record_excerpts(own, planned(tmp_path / "runs")).known == 1
    after = read_frames(own)
    assert after.runs.drop(columns="excerpt").equals(before.runs.drop(columns="excerpt"))
    assert after.scores.equals(before.scores)
    assert after.curves.equals(before.curves)
    (read,) = excerpts(tmp_path / "empty")
    assert read == wanted is not None
    assert read.again is None, "it is from the recorded run itself"
    assert "".join(read.after.dump.responses[0].tokens) == f"30{HOSTILE}"
    first = (own / "runs.parquet").stat()
    record_excerpts(own, planned(tmp_path / "runs"))
    assert (own / "runs.parquet").stat().st_ino == first.st_ino, "not written anew"


def test_of_a_run_made_again_it_says_when_and_from_where_on_it_differs(own: Path, tmp_path: Path) -> None:
    recorded(own, tmp_path / "runs")
    fall(fallen_run(tmp_path / "equal"), REWARDS, made="2026-03-04")
    record_excerpts(own, planned(tmp_path / "equal"))
    (equal,) = excerpts(tmp_path / "empty")
    assert equal.again
    assert (equal.again.differs, equal.again.made[0]["started"][:10]) == (0, "2026-03-04")
    fall(fallen_run(tmp_path / "longer"), (0.3, 0.4, 0.2, 0.05, 0.01), made="2026-03-04")
    record_excerpts(own, planned(tmp_path / "longer"))
    (longer,) = excerpts(tmp_path / "empty")
    assert longer.again
    assert longer.again.differs == 3
    assert (longer.after.dump.step, str(longer.ending)) == (5, "collapse at step 6")
    facts, fallen = known(tmp_path / "empty"), fallen_run(tmp_path / "empty").id
    record = facts.of(fallen)
    assert (len(facts.metrics(fallen)), record.trained, str(record.ending)) == (4, 4, "collapse at step 5"), "it stays"


def test_what_the_store_lacks_is_named_and_what_is_there_is_kept(own: Path, tmp_path: Path) -> None:
    recorded(own, tmp_path / "runs")
    lacking = record_excerpts(own, planned(tmp_path / "empty"))
    assert [unit.label for unit in lacking.lacking] == ["GPG, learning_rate=1e-3"]
    record_excerpts(own, planned(tmp_path / "runs"))
    kept = record_excerpts(own, planned(tmp_path / "empty"))
    assert (kept.known, kept.lacking) == (1, ())
    record_study(own, planned(tmp_path / "runs"))
    assert excerpts(tmp_path / "empty") == [], "a record that is written anew is of a run that may be another"


def test_nothing_on_record_is_refused(own: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing is on record"):
        record_excerpts(own, planned(tmp_path / "runs"))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda value: value.pop("after"),
        lambda value: value["before"]["responses"][0]["tokens"].pop(),
        lambda value: value.update(again={"made": [["nobody", "", ""]], "differs": 1}),
    ],
)
def test_a_damaged_excerpt_is_named(own: Path, tmp_path: Path, spoil) -> None:
    recorded(own, tmp_path / "runs")
    record_excerpts(own, planned(tmp_path / "runs"))
    frames = read_frames(own)
    (row,) = frames.runs.index[frames.runs["excerpt"].notna()]
    value = json.loads(frames.runs.at[row, "excerpt"])
    spoil(value)
    frames.runs.at[row, "excerpt"] = json.dumps(value)
    write_frames(own, frames)
    with pytest.raises(UserError, match=f"excerpt of run {frames.runs.at[row, 'run']}") as caught:
        known(tmp_path / "empty")
    assert caught.value.where == str(own / "runs.parquet")
