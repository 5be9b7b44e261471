"""Runs that train on rewards of a user's own: what is trained on, resuming, files that change or misbehave, noise."""

from pathlib import Path

import pytest

from tepo.common.errors import RunFailed, UserError
from tepo.common.paths import PACKAGE
from tepo.store.run_folder import RunFolder
from tepo.training.loop import train
from tests.integration.commands import tepo
from tests.unit.training.small import SMALL, assert_same_run, interrupted, lasting, small, weights

pytestmark = pytest.mark.disaster
EXAMPLE = PACKAGE.parent / "examples" / "own_reward"
LENGTH = "def reward(problem, response):\n    return max(0.0, 1 - len(response) / 60)\n"
SOME = """
def half(problem, response):
    if sum(map(ord, response)) % 8 == 0:
        raise RuntimeError("of eight")
    return 1 - len(response) / 100
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(LENGTH)
    return path


def test_a_run_learns_what_its_own_reward_asks_for(tmp_path: Path, file: Path) -> None:
    words = (f"data.reward={file}", "train.steps=8", "train.learning_rate=5e-4", "data.benchmarks=[]")
    rows = lasting(train(small(tmp_path, *words)))
    assert all(row["critic/score/mean"] == pytest.approx(row["reward/own/mean"], abs=1e-6) for row in rows)
    assert all(row["reward/failed"] == 0 for row in rows)
    assert rows[-1]["response_length/mean"] < 0.7 * rows[0]["response_length/mean"]
    assert rows[-1]["critic/score/mean"] > rows[0]["critic/score/mean"] + 0.1


@pytest.mark.parametrize("stale", [0, 1])
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, file: Path, stale: int) -> None:
    mapping = f"data.reward={{correct: grader, own: {{file: {file}, weight: 0.3}}}}"
    words = (mapping, "objective=gdpo", "data.flip_rewards=0.2", f"train.staleness={stale}", "grader.workers=1")
    whole = train(small(tmp_path / "whole", *words))
    begun = interrupted(small(tmp_path / "parts", *words), 2)
    again = train(small(tmp_path / "parts", *words, "grader.workers=2"))
    assert again == begun.path
    assert_same_run(whole, again)
    assert all(row["rollout/flipped"] > 0 for row in lasting(whole))


def test_a_file_that_changed_since_the_run_began_is_refused(tmp_path: Path, file: Path) -> None:
    word = f"data.reward={file}"
    begun = interrupted(small(tmp_path, word))
    file.write_text(LENGTH.replace("60", "50"))
    with pytest.raises(UserError, match=f"changed since run {begun.path.name} began, which is at step 1") as refused:
        train(small(tmp_path, word))
    assert refused.value.where == str(file)
    assert [path.parent.name for path in tmp_path.glob("*/config.json")] == [begun.path.name]
    train(small(tmp_path, word, "train.learning_rate=3e-4"))  # another run
    file.write_text(LENGTH)
    assert train(small(tmp_path, word)) == begun.path
    file.write_text(LENGTH.replace("60", "50"))
    assert train(small(tmp_path, word)) != begun.path  # which is finished


def test_failures_are_counted_and_end_the_run_where_they_are_the_rule(tmp_path: Path, file: Path) -> None:
    mapping = f"data.reward={{half: {{file: {file}, function: half}}}}"
    file.write_text(SOME)
    rows = lasting(train(small(tmp_path, mapping)))
    assert all(0 < row["reward/failed"] < row["rollout/responses"] / 2 for row in rows)
    file.write_text(SOME.replace("% 8 == 0", "% 8"))
    config = small(tmp_path, mapping)
    with pytest.raises(RunFailed, match="more than half of 32 responses, as in: RuntimeError: of eight") as ended:
        train(config)
    assert ended.value.where == f"{file}:4"
    assert RunFolder.of(config).manifest()["status"] == "failed"


def test_a_reward_that_never_ends_is_refused_before_the_first_step(tmp_path: Path, file: Path) -> None:
    file.write_text("def reward(problem, response):\n    while True:\n        pass\n")
    done = tepo(
        "train", *SMALL, f"data.reward={file}", "grader.timeout=0.3", f"store={tmp_path / 'runs'}", cwd=tmp_path, code=2
    )
    assert "a reward fails on all of 8 responses: reward " in done.stderr
    assert "grader.timeout, grader.memory_mb and grader.workers set the budget" in done.stderr
    assert str(file) in done.stderr


def test_explain_shows_the_reward_of_a_run_and_executes_nothing(tmp_path: Path, file: Path) -> None:
    mark = tmp_path / "executed"
    file.write_text(f"open({str(mark)!r}, 'w')\n" + LENGTH)
    run = train(small(tmp_path / "runs", f"data.reward={file}", "train.steps=1"))
    mark.unlink()  # it was, to train
    said = tepo("explain", run.name, cwd=tmp_path).stdout
    assert "own, weight 1: reward in" in said
    assert "return max(0.0, 1 - len(response) / 60)" in said
    assert not mark.exists()


def test_noise_is_a_draw_of_its_own_and_what_is_right_is_told_apart(tmp_path: Path) -> None:
    plain, noisy = (lasting(train(small(tmp_path, *words))) for words in ((), ("data.flip_rewards=0.3",)))
    assert noisy[0]["critic/rewards/mean"] != noisy[0]["critic/score/mean"]
    assert 0.1 < noisy[0]["rollout/flipped"] / noisy[0]["rollout/responses"] < 0.5
    assert abs(noisy[0]["critic/score/mean"] - plain[0]["critic/score/mean"]) < 0.25  # of the same base
    assert "critic/rewards/mean" not in plain[0]
    assert lasting(train(small(tmp_path / "again", "data.flip_rewards=0.3"))) == noisy


def test_the_example_trains(tmp_path: Path) -> None:
    words = (*SMALL, "data=laptop_short", "objective=gdpo", "train.steps=2", f"store={tmp_path / 'runs'}")
    tepo("train", *words, cwd=tmp_path, TEPO_PATH=str(EXAMPLE))
    (run,) = (path.parent for path in tmp_path.glob("runs/*/config.json"))
    assert {"reward/correct/mean", "reward/short/mean"} <= set(lasting(run)[0])
    assert weights(run)
