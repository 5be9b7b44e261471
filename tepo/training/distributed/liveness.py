"""Signs of life: ranks write them, see who was last seen, and end where another gives none.

Each rank has a thread that writes a small file into the run's folder every few seconds, and reads those of the others.
A rank whose file does not change is dead or stopped; changes are timed by the reader's clock, so the clocks of machines
need not agree. The thread ends its process with a message then: what trains waits in a collective, out of which no
exception leads. A rank that hangs but lives is left to torch's time-out of collectives.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tepo.common.errors import RunFailed
from tepo.common.files import explain_write_errors, no_link
from tepo.common.text import spelt

EVERY = 3.0  # seconds between two signs of life
SILENT = 90.0  # seconds without one after which a rank is given up


class Activity:
    """Section of a step that the thread which trains is in."""

    def __init__(self) -> None:
        self.section = "start"  # by the names of `timing_s/*`
        self.spent: dict[str, float] = {}  # seconds in the blocks of a section that nobody has taken yet

    @contextlib.contextmanager
    def inside(self, section: str) -> Iterator[None]:
        """Count a block to a section."""
        before, start = self.section, time.monotonic()
        self.section = section
        try:
            yield
        finally:
            self.section = before
            self.spent[section] = self.spent.get(section, 0.0) + time.monotonic() - start


ACTIVITY = Activity()


@dataclass(frozen=True, slots=True)
class Sign:
    """A sign of life that a rank writes."""

    rank: int
    host: str
    pid: int
    number: int  # counts the signs
    section: str
    ended: str = ""  # the error that it ended with

    @property
    def who(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.host})"


@dataclass(frozen=True, slots=True)
class Seen:
    """The last sign of a rank, and when it was new here: monotonic seconds, and by the clock."""

    sign: Sign
    at: float
    clock: str

    def missing(self, seconds: float) -> str:
        """Say so, where it gave no sign for so long; else empty."""
        late = time.monotonic() - self.at > seconds
        return f"{self.sign.who} is missing since {self.clock}" if late else ""


class LostRank(RunFailed):
    """Another rank died or was stopped. what: how it showed."""

    def __init__(self, rank: int, ranks: int, what: str):
        fix = "look for the first error above; "
        fix += "the same command goes on from the last checkpoint, also with another number of ranks"
        super().__init__(f"rank {rank} of {ranks}: {what}", where="a run over several ranks", fix=fix)


class Heartbeat:
    """This rank's signs, and a look at those of the others, inside of a `with`; nothing happens in a run of one rank.

    give_up: gets the message before the thread ends the process."""

    def __init__(self, folder: Path, rank: int, ranks: int, give_up: Callable[[str], None] = lambda what: None):
        self.folder, self.rank, self.ranks, self.give_up = folder, rank, ranks, give_up
        self.seen: dict[int, Seen] = {}
        self._others = [other for other in range(ranks) if other != rank]
        self._before = {other: self._read(other) for other in self._others}  # of an earlier start
        self._number = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="heartbeat")

    def __enter__(self) -> "Heartbeat":
        if self._others:
            with explain_write_errors(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
            ACTIVITY.section = "start"
            self._thread.start()
            _beating.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not self._others:
            return
        _beating.remove(self)
        self._over.set()
        self._thread.join()
        if error is not None and not isinstance(error, LostRank):
            self._sign(str(error).split("\n")[0] or type(error).__name__)
            return
        # No sign is left, so that nobody takes it for the lost one; by the first rank also none of an earlier start on
        # more ranks. The last finds a folder empty.
        others = set(map(self.file, self._others))
        with contextlib.suppress(OSError):
            for file in set(self.folder.iterdir()) - others if self.rank == 0 and not error else {self.file(self.rank)}:
                file.unlink(missing_ok=True)
            self.folder.rmdir()

    def file(self, rank: int) -> Path:
        """Path of a rank's sign."""
        return self.folder / f"rank_{rank:05d}.json"

    def look(self) -> None:
        """Read the files of the others."""
        for rank in self._others:
            sign, last = self._read(rank), self.seen.get(rank)
            if sign is None:
                if not self.file(rank).exists():  # it left in good order, or for another's sake
                    self.seen.pop(rank, None)
            elif last is not None and last.sign == sign:
                continue
            elif sign != self._before[rank] or ACTIVITY.section != "start":  # all have met: it is of this start
                self.seen[rank] = Seen(sign, time.monotonic(), time.strftime("%Y-%m-%d %H:%M:%S"))

    def verdict(self) -> str:
        """Say who is missing, and since when; empty as long as nobody is."""
        who = next(filter(None, (peer.missing(SILENT) for peer in self.seen.values())), "")
        return who and f"{who}; a rank without a sign of life is given up after {SILENT:.0f} s"

    def gone(self) -> str:
        """Say, after a connection broke, who has ended, how and when: by its last sign, or by the lack of three. What
        the others were at where that does not show."""
        until = time.monotonic() + 4 * EVERY
        self.look()
        while time.monotonic() < until and self.seen:
            for peer in self.seen.values():
                if peer.sign.ended:
                    return f"{peer.sign.who} ended at {peer.clock}: {peer.sign.ended}"
                if who := peer.missing(3 * EVERY):
                    return who
            time.sleep(0.1)
            self.look()
        return "; ".join(f"{peer.sign.who} was in {peer.sign.section}" for peer in self.seen.values())

    def _read(self, rank: int) -> Sign | None:
        try:
            return Sign(**json.loads(self.file(rank).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):  # not there yet, or read in the middle of a write
            return None

    def _run(self) -> None:
        self._sign()
        while not self._over.wait(EVERY):
            self._sign()
            self.look()
            if what := self.verdict():
                error = LostRank(self.rank, self.ranks, what)
                with contextlib.suppress(Exception):  # a full disk must not keep it
                    self.file(self.rank).unlink()
                    self.give_up(str(error))
                sys.stderr.write(spelt(f"error: {error}\n"))
                sys.stderr.flush()
                os._exit(error.exit_code)

    def _sign(self, ended: str = "") -> None:
        """Write one, in place: on a network file system a reader of a renamed file may see the old one for a minute."""
        self._number += 1
        sign = Sign(self.rank, socket.gethostname(), os.getpid(), self._number, ACTIVITY.section, ended)
        with (
            contextlib.suppress(OSError),  # of a full disk something else will tell
            open(self.file(self.rank), "w", encoding="utf-8", opener=no_link) as sink,
        ):
            sink.write(json.dumps(asdict(sign)))


_beating: list[Heartbeat] = []  # that of this process


def gone() -> str:
    """After a connection broke: who is missing and since when, where ranks give signs of life."""
    return _beating[0].gone() if _beating else ""
