"""Which rank is missing or hangs, from the files that ranks write; limits of tenths of seconds, or a clock of its
own."""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tepo.training.distributed import liveness
from tepo.training.distributed.liveness import ACTIVITY, Activity, Heartbeat, Limits, Sign, Watch
from tepo.training.metrics.step_metrics import StepMetrics
from tests.integration.commands import python

QUICK = Limits(every=0.02, silent=0.15, slack=1.0, times=2.0, token=0.5)
SIGN = Sign(1, socket.gethostname(), os.getpid(), 1, "gen", waiting=False, stay=0.0)


@pytest.fixture(autouse=True)
def own_activity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that ran before in this process have left what they took."""
    monkeypatch.setattr(ACTIVITY, "section", "start")
    monkeypatch.setattr(ACTIVITY, "longest", {})


def watch(folder: Path, ranks: int = 2) -> Watch:
    return Watch(folder, 0, ranks, max_new_tokens=10, limits=QUICK)


def write(watch: Watch, sign: Sign) -> None:
    watch.file(sign.rank).write_text(json.dumps(asdict(sign)))


class Clock:
    """In place of the module `time`: it stands still between two `sleep`s, however busy the machine is."""

    strftime, localtime, time = staticmethod(time.strftime), staticmethod(time.localtime), staticmethod(time.time)

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("signs_of_rank_2", [2, 10])
def test_a_rank_without_a_sign_is_missing_after_a_while(
    tmp_path: Path, signs_of_rank_2: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(liveness, "time", clock)
    one = watch(tmp_path, 3)
    for number in range(12):
        write(one, replace(SIGN, number=number))
        if number < signs_of_rank_2:
            write(one, replace(SIGN, rank=2, number=number))
        one.look()
        clock.sleep(0.02)
    said = one.verdict()
    if signs_of_rank_2 == 10:  # 0.06 s without one
        assert said == ""
        return
    assert said.startswith(f"rank 2 (process {os.getpid()} on {socket.gethostname()}) is missing since 20")
    assert "given up after 0 s" in said


def test_signs_of_an_earlier_start_and_ranks_that_left_are_not_missing(tmp_path: Path) -> None:
    write(watch(tmp_path), SIGN)
    one = watch(tmp_path)
    ACTIVITY.begin("start")
    one.look()
    time.sleep(0.2)
    assert one.verdict() == ""  # it has not started yet
    write(one, replace(SIGN, number=2))
    one.look()
    one.file(1).unlink()  # in good order
    one.look()
    time.sleep(0.2)
    assert one.verdict() == ""


def test_a_rank_that_was_there_first_and_stops_at_once_is_missing(tmp_path: Path) -> None:
    """Its only sign is older than this watch. All ranks have met when the first step begins."""
    write(watch(tmp_path), SIGN)
    one = watch(tmp_path)
    ACTIVITY.begin("gen")
    one.look()
    time.sleep(0.2)
    one.look()
    assert "is missing since 20" in one.verdict()


@pytest.mark.parametrize(
    ("section", "stay", "hangs"),
    [
        ("update_actor", 4.9, False),
        ("update_actor", 5.1, True),  # slack 1 + 2 x 2 on the rank that waits
        ("gen", 5.9, False),
        ("gen", 6.1, True),  # 1 + 0 + 0.5 x 10 tokens
        ("start", 1000.0, False),
        ("save_checkpoint", 1000.0, False),
    ],
)
def test_the_limit_follows_what_the_others_took(tmp_path: Path, section: str, stay: float, hangs: bool) -> None:
    one = watch(tmp_path, 3)
    write(one, replace(SIGN, section=section, stay=stay))
    write(one, replace(SIGN, rank=2, section=section, waiting=True, longest={"update_actor": 2.0}))
    one.look()
    said = one.verdict()
    assert said.startswith(f"rank 1 (process {os.getpid()} on ") == hangs
    assert ("hangs in" in said) == hangs


def test_nobody_hangs_as_long_as_nobody_waits(tmp_path: Path) -> None:
    one = watch(tmp_path)
    write(one, replace(SIGN, stay=1e6))
    one.look()
    assert one.verdict() == ""


@pytest.mark.parametrize(("stay", "hangs"), [(4.9, False), (5.1, True)])
def test_where_nobody_is_seen_to_wait_the_limit_follows_what_it_took_before(
    tmp_path: Path, stay: float, hangs: bool
) -> None:
    """As when all ranks are inside of the engine's collectives, one of which never comes."""
    one = watch(tmp_path, 3)
    write(one, replace(SIGN, section="update_actor", stay=stay, longest={"update_actor": 0.5}))
    write(one, replace(SIGN, rank=2, section="update_actor", stay=0.1, longest={"update_actor": 2.0}))
    one.look()
    assert ("hangs in update_actor for 5 s; before, it took 2 s at most" in one.verdict()) == hangs


def test_after_a_broken_connection_the_dead_process_is_named(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    one = watch(tmp_path, 3)
    write(one, SIGN)
    write(one, replace(SIGN, rank=2, pid=dead.pid))
    assert one.gone().startswith(f"rank 2 (process {dead.pid} on ")


def test_an_error_of_its_own_is_said_and_one_for_another_rank_s_end_is_not(tmp_path: Path) -> None:
    one = watch(tmp_path, 3)
    write(one, replace(SIGN, ended="the connection broke", lost=True))
    write(one, replace(SIGN, rank=2, ended="the disk is full"))
    said = one.gone()
    assert said.startswith("rank 2 ")
    assert said.endswith(": the disk is full")


def test_a_torn_file_is_passed_over(tmp_path: Path) -> None:
    one = watch(tmp_path)
    one.file(1).write_text('{"rank": 1, "ho')
    one.look()
    assert one.seen == {}


def test_signs_are_removed_at_a_good_end_and_kept_with_the_reason_at_another(tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    one = watch(folder)
    folder.mkdir()
    (folder / "rank_00007.json").write_text("{}")  # of an earlier start on more ranks
    with Heartbeat(one):
        while not one.file(0).is_file():
            time.sleep(0.01)
    assert not folder.exists()
    with pytest.raises(ValueError, match="typo"), Heartbeat(watch(folder)):
        raise ValueError("typo")
    assert json.loads(one.file(0).read_text())["ended"] == "typo"


def test_a_run_of_one_rank_writes_no_signs(tmp_path: Path) -> None:
    with Heartbeat(Watch(tmp_path / "ranks", 0, 1, 10, QUICK)):
        pass
    assert list(tmp_path.iterdir()) == []


END = """
import sys, time
from pathlib import Path
from tepo.training.distributed.liveness import Heartbeat
from tepo.training.distributed.liveness import Limits, Watch
watch = Watch(Path(sys.argv[1]), 0, 2, 10, Limits(every=0.02, silent=0.3))
with Heartbeat(watch, lambda error: Path(sys.argv[1], "said").write_text(error)):
    watch.file(1).write_text(sys.argv[2])
    time.sleep(60)  # as in a collective
"""


def test_a_rank_that_waits_is_ended_with_the_name_of_the_lost_one(tmp_path: Path) -> None:
    done = python("-c", END, tmp_path, json.dumps(asdict(SIGN)), code=1, seconds=50)
    assert done.stderr.startswith("error: rank 0 of 2: rank 1 (process ")
    assert "is missing since" in done.stderr
    assert "try: look for the first error above; the same command goes on" in done.stderr
    assert (tmp_path / "said").read_text() in done.stderr


def test_work_and_waiting_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(liveness, "time", clock)
    activity = Activity()
    with activity.inside("gen"):
        clock.sleep(5)
        with activity.meeting():
            assert activity.waiting
            clock.sleep(10)
        assert not activity.waiting
        assert activity.stay == 0
    assert activity.section == "start"
    assert (activity.longest["gen"], activity.waits["gen"], activity.spent["gen"]) == (5, 10, 15)


def test_the_process_has_one_activity() -> None:
    recorder = StepMetrics()
    with recorder.time("gen"):
        assert ACTIVITY.section == "gen"
    assert ACTIVITY.section == "step"
