import json
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from tepo.common.errors import RunFailed, UserError
from tepo.training.distributed import liveness, process_group
from tepo.training.distributed.liveness import ACTIVITY, SILENT, Heartbeat, LostRank, Sign
from tests.support.commands import python

SIGN = Sign(1, socket.gethostname(), os.getpid(), 1, "gen")
ME = f"(process {os.getpid()} on {socket.gethostname()})"


class Clock:
    """In place of the module `time`: it stands still between two `sleep`s, however busy the machine is."""

    strftime = staticmethod(time.strftime)

    def __init__(self) -> None:
        self.now = 0.0
        self.on_sleep: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Tests that ran before in this process have left a section."""
    monkeypatch.setattr(ACTIVITY, "section", "start")
    monkeypatch.setattr(ACTIVITY, "spent", {})
    monkeypatch.setattr(liveness, "time", clock := Clock())
    return clock


def write(one: Heartbeat, sign: Sign) -> None:
    one.file(sign.rank).write_text(json.dumps(asdict(sign)))


def test_a_rank_without_a_sign_is_missing_after_a_while(tmp_path: Path, clock: Clock) -> None:
    one = Heartbeat(tmp_path, 0, 3)
    for number in range(7):
        write(one, replace(SIGN, number=number))
        if number < 2:
            write(one, replace(SIGN, rank=2, number=number))
        one.look()
        assert one.verdict() == ""
        clock.sleep(SILENT / 5.5)
    assert one.verdict().startswith(f"rank 2 {ME} is missing since 20")


def test_signs_of_an_earlier_start_and_ranks_that_left_are_not_missing(tmp_path: Path, clock: Clock) -> None:
    write(Heartbeat(tmp_path, 0, 2), SIGN)
    one = Heartbeat(tmp_path, 0, 2)
    one.look()
    clock.sleep(2 * SILENT)
    assert one.verdict() == ""  # it has not started yet
    write(one, replace(SIGN, number=2))
    one.look()
    one.file(1).unlink()  # in good order
    one.look()
    clock.sleep(2 * SILENT)
    assert one.verdict() == ""


def test_a_rank_that_was_there_first_and_stops_at_once_is_missing(tmp_path: Path, clock: Clock) -> None:
    """Its only sign is older than this look. All ranks have met when the first step begins."""
    write(Heartbeat(tmp_path, 0, 2), SIGN)
    one = Heartbeat(tmp_path, 0, 2)
    ACTIVITY.section = "gen"
    one.look()
    clock.sleep(2 * SILENT)
    one.look()
    assert "is missing since 20" in one.verdict()


def test_after_a_broken_connection_what_the_others_were_at_is_said_and_who_ends(tmp_path: Path, clock: Clock) -> None:
    one = Heartbeat(tmp_path, 0, 3)
    beats = iter(range(1000))
    clock.on_sleep = lambda: write(one, replace(SIGN, number=next(beats)))
    clock.on_sleep()
    assert one.gone() == f"rank 1 {ME} was in gen"
    write(one, replace(SIGN, rank=2))
    assert one.gone().startswith(f"rank 2 {ME} is missing since 20")
    one.file(1).write_text('{"rank": 1, "ho')  # torn
    write(one, replace(SIGN, rank=2, ended="the disk is full"))
    said = one.gone()
    assert said.startswith(f"rank 2 {ME} ended at 20")
    assert said.endswith(": the disk is full")


def test_signs_are_kept_with_the_reason_at_an_end_that_is_not_good_and_not_another_rank_s(tmp_path: Path) -> None:
    folder, other = tmp_path / "ranks", tmp_path / "ranks" / "rank_00007.json"
    folder.mkdir()
    other.write_text("{}")  # of an earlier start on more ranks
    with pytest.raises(ValueError, match="typo"), Heartbeat(folder, 0, 2) as one:
        raise ValueError("typo")
    assert json.loads(one.file(0).read_text())["ended"] == "typo"
    with pytest.raises(LostRank), Heartbeat(folder, 0, 2):
        raise LostRank(0, 2, "rank 1 is missing")
    assert list(folder.iterdir()) == [other]
    with Heartbeat(folder, 0, 2) as one:
        while not one.file(0).is_file():
            time.sleep(0.01)
    assert not folder.exists()


END = """
import sys, time
from pathlib import Path
from tepo.training.distributed import liveness
liveness.EVERY, liveness.SILENT = 0.02, 0.3
with liveness.Heartbeat(Path(sys.argv[1]), 0, 2, lambda error: Path(sys.argv[1], "said").write_text(error)) as one:
    one.file(1).write_text(sys.argv[2])
    time.sleep(60)  # as in a collective
"""


def test_a_rank_that_waits_is_ended_with_the_name_of_the_lost_one(tmp_path: Path) -> None:
    done = python("-c", END, tmp_path, json.dumps(asdict(SIGN)), code=1, seconds=50)
    assert done.stderr.startswith("error: rank 0 of 2: rank 1 (process ")
    assert "is missing since" in done.stderr
    assert (tmp_path / "said").read_text() in done.stderr


def test_a_process_without_a_launcher_has_the_port_that_its_store_binds(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is looked for and let go may be taken before the store binds it. The second group meets there too."""
    monkeypatch.setattr(process_group, "_stores", {})
    monkeypatch.setattr(socket.socket, "bind", lambda own, address: pytest.fail(f"bound {address}"))
    with mock.patch.dict(os.environ):
        process_group.start(torch.device("cpu"))
        port = os.environ["MASTER_PORT"]
        with socket.create_connection(("127.0.0.1", int(port))):  # the store's
            dist.destroy_process_group()
            process_group.start(torch.device("cpu"))
            dist.destroy_process_group()
        assert os.environ["MASTER_PORT"] == port != "0"


def test_a_port_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        for name, value in (variables | {"MASTER_PORT": str(holder.getsockname()[1])}).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(UserError, match="port of rank 0 is taken"):
            process_group.start(torch.device("cpu"))


def test_a_broken_connection_is_said_and_other_errors_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = signal.getsignal(signal.SIGTERM)
    broken = r"rank 0 of 2: the connection to another rank broke \(connection closed by peer\)"
    try:
        with pytest.raises(RunFailed, match=broken), process_group.lost_ranks():
            raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711. This")
        with pytest.raises(RuntimeError, match="shapes"), process_group.lost_ranks():
            raise RuntimeError("shapes do not match")
        monkeypatch.setenv("RANK", "1")
        ended = r"rank 1 of 2: ended from outside \(SIGTERM\)"
        with pytest.raises(RunFailed, match=ended), process_group.lost_ranks():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
