"""Training as a job: what the steps of a process have cost."""

from pathlib import Path

from tepo.jobs.measure import After, measure_run
from tepo.jobs.train import train_and_draw
from tests.unit.training.small import interrupted, small


def test_steps_that_are_trained_again_count(tmp_path: Path) -> None:
    config = small(tmp_path, "train.checkpoint_every=2")
    run = interrupted(config, step=1)  # before its first checkpoint
    kept = run.metrics()
    rows = train_and_draw(config, After(), quiet=True)
    assert rows == run.metrics()
    assert rows[0] != kept[0]
    measure_run(config, rows, After(), quiet=True)
    assert [cost.steps for cost in run.costs()] == [3]
    assert train_and_draw(config, After(), quiet=True) == []
