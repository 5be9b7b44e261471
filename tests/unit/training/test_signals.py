import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tepo.common import signals
from tepo.common.errors import RunFailed
from tepo.store.run_folder import RunFolder
from tepo.training.distributed import process_group
from tepo.training.loop import train
from tepo.training.rollout.collector import Collector
from tepo.training.run import Run
from tests.support.runs import assert_same_run, small


@pytest.fixture(autouse=True)
def handlers_of_before() -> Iterator[None]:
    before = [(number, signal.getsignal(number)) for number in signals.SIGNALS]
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests themselves run under nohup
    yield
    for number, handler in before:
        signal.signal(number, handler)
    signals._noted.clear()


STEPS = "train.steps=4"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(Run(small(tmp_path_factory.mktemp("undisturbed"), STEPS)))


@pytest.mark.parametrize("number", signals.SIGNALS)
def test_a_run_that_is_asked_to_stop_saves_what_it_has(number: int, undisturbed: Path, tmp_path: Path) -> None:
    """Between the checkpoints that it writes anyway; the code says that the same command goes on."""

    def ask(step: int, row: dict) -> None:
        if step == 2:
            os.kill(os.getpid(), number)

    words = (STEPS, "train.checkpoint_every=4")
    with pytest.raises(signals.Stopped) as caught:
        train(Run(small(tmp_path / "a", *words)), ask)
    assert caught.value.code == 75
    run = RunFolder.of(small(tmp_path / "a", *words))
    assert run.checkpoints() == [2]
    assert run.manifest()["status"] == "interrupted"
    assert run.manifest()["error"] == f"asked to stop ({signal.Signals(number).name})"
    assert_same_run(train(Run(small(tmp_path / "a", *words))), undisturbed)


def test_a_rollout_is_given_up_and_its_step_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = Collector._verdicts

    def asked_in_the_middle(collector, under_way, recorder):  # type: ignore[no-untyped-def]
        if under_way.step == 3:
            os.kill(os.getpid(), signal.SIGUSR2)
        return verdicts(collector, under_way, recorder)

    words = ("train.steps=4", "train.checkpoint_every=4", "train.staleness=1")
    monkeypatch.setattr(Collector, "_verdicts", asked_in_the_middle)
    with pytest.raises(signals.Stopped):
        train(Run(small(tmp_path / "a", *words)))
    monkeypatch.undo()
    run = RunFolder.of(small(tmp_path / "a", *words))
    assert run.checkpoints() == [1]  # the rollout of step 3 is drawn in step 2
    resumed, undisturbed = train(Run(small(tmp_path / "a", *words))), train(Run(small(tmp_path / "b", *words)))
    assert_same_run(resumed, undisturbed)


def test_a_run_that_is_asked_in_its_last_step_is_finished(tmp_path: Path) -> None:
    config = small(tmp_path)
    train(Run(config), lambda step, row: os.kill(os.getpid(), signal.SIGTERM) if step == 3 else None)
    assert RunFolder.of(config).finished()
    with pytest.raises(signals.Stopped):  # before its measurement
        signals.end_if_asked()


def test_outside_of_training_a_request_ends_the_command() -> None:
    signals.at_once()
    with pytest.raises(signals.Stopped, match=r"asked to stop \(SIGTERM\)"):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)  # a second one does not disturb the end


def test_under_nohup_the_end_of_a_terminal_is_no_request(tmp_path: Path) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    config = small(tmp_path, "train.steps=2")
    train(Run(config), lambda step, row: os.kill(os.getpid(), signal.SIGHUP))
    assert RunFolder.of(config).finished()
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
        assert thread.submit(train, Run(small(tmp_path, "train.steps=1"))).result().is_dir()
