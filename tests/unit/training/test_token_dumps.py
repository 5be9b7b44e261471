"""Token dumps of a run that was interrupted, against what its checkpoint says of them."""

from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.store.run_folder import RunFolder
from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.runs import assert_same_run, interrupted, small

EVERY = ("train.token_dump_every=1", "train.checkpoint_every=1")


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def test_what_became_of_dumps_is_said_and_a_changed_one_is_not_believed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = small(tmp_path, *EVERY)
    run = interrupted(config, 2)
    assert len(run.token_dumps()) == 2
    flip(run.tokens(1), -20)
    run.tokens(2).unlink()
    with pytest.raises(UserError, match=r"is not as it was written.*\n.*step_000001\.json"):
        run.token_dumps()
    capfd.readouterr()
    train(Run(config))
    said = capfd.readouterr().err
    assert f"{run.tokens(1)} is not as it was written (SHA-256)" in said
    assert f"{run.tokens(2)} is missing" in said
    for read in (run.token_dumps, run.excerpt):  # of the finished run too
        with pytest.raises(UserError, match=r"is not as it was written.*\n.*step_000001\.json"):
            read()
    with pytest.raises(UserError, match=r"step_000001\.json"):
        run.check_whole(contents=True)
    run.tokens(1).unlink()
    run.check_whole(contents=True)
    assert run.token_dumps() == [run.tokens(3)]


def test_dumps_of_a_resumed_run_are_those_of_one_that_was_not_interrupted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A dump of a step that no checkpoint has is drawn anew."""
    config = small(tmp_path / "cut", "train.token_dump_every=1", "train.checkpoint_every=2")
    run = interrupted(config, 3)
    stray = run.tokens(7)
    stray.write_bytes(run.tokens(3).read_bytes())
    if run.checkpoints() == [2]:
        flip(run.tokens(3), 50)
    train(Run(config))
    assert "step_00000" not in capfd.readouterr().err
    assert not stray.exists()
    whole = RunFolder(train(Run(small(tmp_path / "whole", "train.token_dump_every=1"))))
    assert_same_run(run.path, whole.path)
    assert run.manifest()["tokens"] == whole.manifest()["tokens"]
    assert [path.read_bytes() for path in run.token_dumps()] == [path.read_bytes() for path in whole.token_dumps()]
