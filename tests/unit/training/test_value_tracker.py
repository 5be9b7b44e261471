import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tepo.config.run_config import RunConfig
from tepo.store.run_folder import final_model
from tepo.training.loop import train
from tepo.training.rollout_batch import Group
from tepo.training.run import Run
from tepo.training.value_tracker import ValueTracker
from tests.support.rollouts import graded, rollout
from tests.support.runs import assert_same_run, interrupted, lasting, small, write


def test_a_visit_forgets_by_how_far_the_policy_has_moved(tmp_path: Path) -> None:
    """As the lines of SPO's code: rho = clip(2^(-D/0.06), 0.875, 0.96), alpha = rho alpha + r, beta = rho beta + 1 - r,
    with D of the last response, and rho = 0.96 at first."""
    tracker, level = ValueTracker(), [-1.0]
    assert tracker.values([graded([1], name="a")]) == [0.5]

    def visit(*groups: Group) -> None:
        tracker.visit(rollout(*groups), lambda scored: torch.full((int(scored.lengths.sum()),), level[0]))

    visit(graded([1], name="a"), graded([0], name="b"))
    right = 0.96 * 0.5 + 1
    assert tracker.values([graded([0], name="a"), graded([0], name="b")]) == [
        right / (right + 0.48),
        0.48 / (right + 0.48),
    ]
    for moved, kept in ((0.006, 2**-0.1), (0.001, 0.96), (1.0, 0.875)):
        level[0] -= moved
        before = tracker.known["a"]
        visit(graded([0], name="a"))
        after = tracker.known["a"]
        assert (after.right, after.wrong) == pytest.approx((kept * before.right, kept * before.wrong + 1), rel=1e-5)
    visit(graded([1, 0, 1], name="c"))  # of a group all count
    assert (tracker.known["c"].right, tracker.known["c"].wrong) == (2.48, 1.48)
    tracker.write(tmp_path)
    again = ValueTracker.read(tmp_path)
    assert list(again.known) == ["a", "b", "c"]
    for name, one in tracker.known.items():
        for key in ("right", "wrong", "tokens", "logprobs"):
            np.testing.assert_array_equal(getattr(again.known[name], key), getattr(one, key))


def few(folder: Path, *words: str) -> RunConfig:
    """A run on twelve sums, eight a step, with one response each."""
    sums = [(a, b) for a in (3, 14, 25) for b in (4, 15, 26, 47)]
    rows = [json.dumps({"problem": f"{a}+{b}=", "answer": str(a + b)}) for a, b in sums]
    file = write(folder / "sums.jsonl", "\n".join(rows))
    spo = ("objective=spo", "train.samples_per_prompt=1", "train.steps=4", "train.learning_rate=1e-3")
    return small(folder / "runs", *spo, f"data={file}", *words)


@pytest.mark.parametrize("words", [("train.staleness=1",), ("train.samples_per_prompt=2",)], ids=str)
def test_a_killed_run_ends_as_one_that_went_through(tmp_path: Path, words: tuple[str, ...]) -> None:
    for step in (1, 2):
        config = few(tmp_path / "stopped", *words)
        checkpoint = final_model(interrupted(config, step).path)
        assert len(ValueTracker.read(checkpoint).known) == (8 if step == 1 else 12)
    stopped, through = train(Run(config)), train(Run(few(tmp_path / "through", *words)))
    assert_same_run(stopped, through)
    values = [row["rollout/value"] for row in lasting(through)]
    assert values[0] == 0.5
    assert values[-1] != 0.5
    assert all(row["rollout/groups_kept"] == 8 for row in lasting(through))
