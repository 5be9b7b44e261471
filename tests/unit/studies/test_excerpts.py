import json
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.store.facts import Facts
from tepo.store.records import read_frames, write_frames
from tepo.store.stored_tokens import Excerpt
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import plan_all
from tepo.studies.planned_facts import read_facts
from tepo.studies.record_runs import folder_of, record_study
from tests.support.results import fall, finish, measure
from tests.support.runs import write

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
    return read_facts(planned(store), records=True)[1]


def excerpts(store: Path) -> list[Excerpt]:
    """On record: the store is empty."""
    return [one for one in known(store).runs["excerpt"] if one]


def test_before_is_the_last_step_with_half_of_the_highest_reward_and_after_the_last(own: Path, tmp_path: Path) -> None:
    unit = fallen_run(tmp_path)
    fall(unit, REWARDS)
    excerpt = unit.folder.excerpt()
    assert excerpt
    assert [(one.dump.step, one.reward) for one in (excerpt.before, excerpt.after)] == [(3, 0.21), (4, 0.05)]
    assert str(excerpt.ending) == "collapse at step 5"
    said = ["".join(one.tokens) for one in excerpt.before.dump.responses]
    assert said == ["309", "509", "709", "319"], "the first to each prompt as they were drawn, then the second ones"
    assert excerpt.before.dump.responses[0].values == {"entropy": [0.123] * 3, "entropy_change": [-0.5, 0.5, 0.0]}


@pytest.mark.parametrize(
    ("rewards", "missing"), [((0.3, 0.72, 0.49, 0.34), ()), ((0.3, 0.35, 0.2), ()), (REWARDS, (4,))]
)
def test_a_run_that_did_not_fall_or_lacks_the_dumps_has_none(
    own: Path, tmp_path: Path, rewards: tuple[float, ...], missing: tuple[int, ...]
) -> None:
    """One low step at the end is no fall."""
    unit = fallen_run(tmp_path)
    fall(unit, rewards)
    for step in missing:
        unit.folder.tokens(step).unlink()
    assert unit.folder.excerpt() is None


def test_a_record_gives_back_what_the_store_had(own: Path, tmp_path: Path) -> None:
    recorded(own, tmp_path / "runs", HOSTILE)
    assert excerpts(tmp_path / "empty") == [fallen_run(tmp_path / "runs").folder.excerpt()]
    (read,) = excerpts(tmp_path / "empty")
    assert "".join(read.after.dump.responses[0].tokens) == f"30{HOSTILE}"


def test_a_damaged_excerpt_is_named(own: Path, tmp_path: Path) -> None:
    recorded(own, tmp_path / "runs")
    frames = read_frames(own)
    (row,) = frames.runs.index[frames.runs["excerpt"].notna()]
    value = json.loads(frames.runs.at[row, "excerpt"])
    value["before"]["responses"][0]["tokens"].pop()
    frames.runs.at[row, "excerpt"] = json.dumps(value)
    write_frames(own, frames)
    with pytest.raises(UserError, match=f"excerpt of run {frames.runs.at[row, 'run']}") as caught:
        known(tmp_path / "empty")
    assert caught.value.where == str(own / "runs.parquet")
