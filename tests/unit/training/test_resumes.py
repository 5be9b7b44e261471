"""Runs that are interrupted, asked to stop or killed, and what they are when they go on."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tepo.common import signals
from tepo.common.errors import RunFailed, UserError
from tepo.store.run_folder import RunFolder
from tepo.training.distributed import process_group
from tepo.training.loop import train
from tepo.training.rollout.collector import Collector
from tepo.training.run import Run
from tests.support.runs import assert_same_run, interrupted, small, tiny, write
from tests.unit.training.test_loop import refilled


@pytest.fixture(autouse=True)
def handlers_of_before() -> Iterator[None]:
    before = [(number, signal.getsignal(number)) for number in signals.SIGNALS]
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests themselves run under nohup
    yield
    for number, handler in before:
        signal.signal(number, handler)
    signals._noted.clear()


STEPS = ("train.steps=5", "train.token_dump_every=1")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run in which a step after a checkpoint draws more prompts than it does at first."""
    run = RunFolder(train(Run(small(tmp_path_factory.mktemp("whole"), *STEPS))))
    assert refilled([row["rollout/prompts"] for row in run.metrics()][1:])
    return run


@pytest.mark.parametrize(("every", "saved"), [(1, [1, 2]), (2, [2]), ("null", [])])
def test_an_interrupted_run_ends_as_an_undisturbed_one(
    tmp_path: Path, whole: RunFolder, every: int | str, saved: list[int]
) -> None:
    """By the clock nothing is due within the first ten minutes: the run begins again. A dump of a step that no
    checkpoint has is drawn anew."""
    run = interrupted(small(tmp_path, *STEPS, f"train.checkpoint_every={every}"), 2)
    assert run.checkpoints() == saved
    assert run.manifest()["status"] == "interrupted"
    with run.metrics_file.open("a") as file:  # what a kill in the middle of a write leaves
        file.write('{"training/global_step": 3, "critic/sc')
    stray = write(run.tokens(7), run.tokens(2).read_text())
    train(Run(small(tmp_path, *STEPS)))
    assert_same_run(run.path, whole.path)
    assert not stray.exists()
    assert run.manifest()["tokens"] == whole.manifest()["tokens"]
    assert [path.read_bytes() for path in run.token_dumps()] == [path.read_bytes() for path in whole.token_dumps()]


def test_a_run_that_is_asked_to_stop_saves_what_it_has(tmp_path: Path) -> None:
    """Between the checkpoints that it writes anyway; the code says that the same command goes on."""
    config = tiny(tmp_path / "a", "train.checkpoint_every=4")
    with pytest.raises(signals.Stopped) as caught:
        train(Run(config), lambda step, row: os.kill(os.getpid(), signal.SIGTERM) if step == 2 else None)
    assert caught.value.code == 75
    run = RunFolder.of(config)
    assert run.checkpoints() == [2]
    assert run.manifest()["status"] == "interrupted"
    assert run.manifest()["error"] == "asked to stop (SIGTERM)"
    assert_same_run(train(Run(config)), train(Run(tiny(tmp_path / "b"))))


@pytest.mark.parametrize("number", signals.SIGNALS)
def test_training_hears_each_of_the_signals(number: int) -> None:
    with signals.deferred(lambda: None):
        signal.raise_signal(number)
        assert signals.asked()


def test_a_rollout_is_given_up_and_its_step_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = Collector._verdicts

    def asked_in_the_middle(collector, under_way, recorder):  # type: ignore[no-untyped-def]
        if under_way.step == 3:
            os.kill(os.getpid(), signal.SIGUSR2)
        return verdicts(collector, under_way, recorder)

    words = ("train.checkpoint_every=4", "train.staleness=1")
    config = tiny(tmp_path / "a", *words)
    with monkeypatch.context() as patch:
        patch.setattr(Collector, "_verdicts", asked_in_the_middle)
        with pytest.raises(signals.Stopped):
            train(Run(config))
    assert RunFolder.of(config).checkpoints() == [1]  # the rollout of step 3 is drawn in step 2
    assert_same_run(train(Run(config)), train(Run(tiny(tmp_path / "b", *words))))


def test_a_run_that_is_asked_in_its_last_step_is_finished(tmp_path: Path) -> None:
    config = tiny(tmp_path, "train.steps=1")
    train(Run(config), lambda step, row: os.kill(os.getpid(), signal.SIGTERM))
    assert RunFolder.of(config).finished()
    with pytest.raises(signals.Stopped):  # before its measurement
        signals.end_if_asked()


def test_outside_of_training_a_request_ends_the_command() -> None:
    signals.at_once()
    with pytest.raises(signals.Stopped, match=r"asked to stop \(SIGTERM\)"):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)  # a second one does not disturb the end


def test_under_nohup_the_end_of_a_terminal_is_no_request() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with signals.deferred(lambda: None):
        signal.raise_signal(signal.SIGHUP)
        assert not signals.asked()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    code = "import signal; from tepo.common import signals; signals.at_once(); signal.raise_signal(1); print('goes on')"
    for before, ended in (("nohup", (0, "goes on\n")), ("env", (signals.EXIT_CODE, ""))):
        done = subprocess.run([before, sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == ended


def test_sigterm_after_the_death_of_another_rank_is_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun sends the same signal in both cases: what differs is whether the ranks are still there."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with signals.deferred(process_group.check_neighbours):
        signal.raise_signal(signal.SIGTERM)
        assert signals.asked()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "100000")  # more than whoever started the tests has children
    with (
        pytest.raises(RunFailed, match="as the launcher does when another rank died"),
        signals.deferred(process_group.check_neighbours),
    ):
        signal.raise_signal(signal.SIGTERM)


def test_a_run_in_a_thread_hears_nothing(tmp_path: Path) -> None:
    """As in a notebook's worker thread, where Python cannot listen to signals."""
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(train, Run(tiny(tmp_path, "train.steps=1"))).result().is_dir()


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def test_what_became_of_dumps_is_said_and_a_changed_one_is_not_believed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tiny(tmp_path, "train.token_dump_every=1", "train.checkpoint_every=1")
    run = interrupted(config, 2)
    assert len(run.token_dumps()) == 2
    flip(run.tokens(1), -20)
    run.tokens(2).unlink()
    with pytest.raises(UserError, match=r"is not as it was written.*\n.*step_000001\.json"):
        run.token_dumps()
    train(Run(config))
    said = capfd.readouterr().err
    assert f"{run.tokens(1)} is not as it was written (SHA-256)" in said
    assert f"{run.tokens(2)} is missing" in said
    for read in (run.token_dumps, run.excerpt, lambda: run.check_whole(contents=True)):  # of the finished run too
        with pytest.raises(UserError, match=r"step_000001\.json"):
            read()
    run.tokens(1).unlink()
    run.check_whole(contents=True)
    assert run.token_dumps() == [run.tokens(3)]
