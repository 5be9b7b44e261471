"""Liveness of ranks: signs of life, what those of the others say, and the end of a rank that would wait for a lost one.

Each rank has a thread that writes a small file into the run's folder every few seconds, and reads those of the others.
A rank whose file does not change is dead or stopped; changes are timed by the reader's clock, so the clocks of machines
need not agree. One that works on while others wait for it may take `Limits.limit`, which follows what the same work
took on them. Where nobody is seen to wait, as inside the engine's own collectives, it follows what the work took
before. When one is missing or hangs, the thread ends its process with a message: what trains waits in a collective,
out of which no exception leads.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tepo.common.errors import RunFailed
from tepo.common.files import explain_write_errors, no_link
from tepo.common.text import spelt

_SAMPLING = ("gen", "testing")  # sections that decode up to `max_new_tokens`
_PATIENT = ("start", "save_checkpoint")  # that take what the disk takes


class Activity:
    """Section of a step that the thread which trains is in. section: by the names of `timing_s/*`. waiting: for other
    ranks, in a collective of ours. waits: seconds of it so far by section. longest: by section, the longest stretch of
    work between two collectives. spent: by section, seconds in its blocks that nobody has taken yet."""

    def __init__(self) -> None:
        self.section, self.waiting = "start", False
        self.waits: dict[str, float] = {}
        self.longest: dict[str, float] = {}
        self.spent: dict[str, float] = {}
        self._since = time.monotonic()

    @property
    def stay(self) -> float:
        """Seconds that it has worked, or waited, without a change."""
        return time.monotonic() - self._since

    @contextlib.contextmanager
    def inside(self, section: str) -> Iterator[None]:
        """Count a block to a section."""
        before, start = self.section, time.monotonic()
        self.begin(section)
        try:
            yield
        finally:
            self.begin(before)
            self.spent[section] = self.spent.get(section, 0.0) + time.monotonic() - start

    @contextlib.contextmanager
    def meeting(self) -> Iterator[None]:
        """Mark a block as a collective: in it others may be what is waited for."""
        self.begin(self.section)
        self.waiting = True
        try:
            yield
        finally:
            self.waiting = False
            self.waits[self.section] = self.waits.get(self.section, 0.0) + self.stay
            self._since = time.monotonic()

    def begin(self, section: str) -> None:
        """Count what follows to a section."""
        self.longest[self.section] = max(self.longest.get(self.section, 0.0), self.stay)
        self.section, self._since = section, time.monotonic()


ACTIVITY = Activity()


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds. every: between two signs of life. silent: without one a rank is missing. slack, times, token: a rank for
    which others wait may take slack + times x what the same section took on them + token x max_new_tokens, the last
    where it samples."""

    every: float = 3.0
    silent: float = 90.0
    slack: float = 300.0
    times: float = 2.0
    token: float = 0.05

    def limit(self, section: str, took: float, max_new_tokens: int) -> float:
        """Seconds that a rank may take; took: the longest stretch of the section on the ranks that wait."""
        return self.slack + self.times * took + self.token * max_new_tokens * (section in _SAMPLING)


@dataclass(frozen=True, slots=True)
class Sign:
    """A sign of life that a rank writes. number: counts the signs. stay: seconds without a change of section or
    waiting. longest: see `Activity`. ended: the error that it ended with; `lost` where that was another rank's end."""

    rank: int
    host: str
    pid: int
    number: int
    section: str
    waiting: bool
    stay: float
    longest: Mapping[str, float] = field(default_factory=dict)
    ended: str = ""
    lost: bool = False

    @property
    def who(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.host})"


@dataclass(frozen=True, slots=True)
class Seen:
    """The last sign of a rank, and when it was new here: monotonic seconds, and by the clock."""

    sign: Sign
    at: float
    clock: float

    @property
    def since(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.clock))

    @property
    def missing(self) -> str:
        return f"{self.sign.who} is missing since {self.since}"


class Watch:
    """The signs of all other ranks, and what they mean."""

    def __init__(self, folder: Path, rank: int, ranks: int, max_new_tokens: int, limits: Limits):
        self.folder, self.rank, self.max_new_tokens, self.limits = folder, rank, max_new_tokens, limits
        self.ranks, self.others = ranks, [other for other in range(ranks) if other != rank]
        self.seen: dict[int, Seen] = {}
        self._before = {other: self._read(other) for other in self.others}  # of an earlier start

    def file(self, rank: int) -> Path:
        """Path of a rank's sign."""
        return self.folder / f"rank_{rank:05d}.json"

    def look(self) -> None:
        """Read the files of the others."""
        for rank in self.others:
            sign, last = self._read(rank), self.seen.get(rank)
            if sign is None:
                if not self.file(rank).exists():  # it left in good order
                    self.seen.pop(rank, None)
            elif last is not None and last.sign == sign:
                continue
            elif sign != self._before[rank] or ACTIVITY.section != "start":  # all have met: it is of this start
                self.seen[rank] = Seen(sign, time.monotonic(), time.time())

    def verdict(self) -> str:
        """Say who is missing or hangs, and since when; empty as long as nobody does."""
        now, own = time.monotonic(), ACTIVITY
        for seen in self._suspects():
            if now - seen.at > self.limits.silent:
                return f"{seen.missing}; a rank without a sign of life is given up after {self.limits.silent:.0f} s"
        others = [seen.sign for seen in self.seen.values()]
        waiting = [sign.longest for sign in others if sign.waiting] + ([own.longest] if own.waiting else [])
        before = [own.longest, *(sign.longest for sign in others)]
        for seen in self._suspects():
            section = seen.sign.section
            took = max((longest.get(section, 0.0) for longest in waiting or before), default=0.0)
            limit = self.limits.limit(section, took, self.max_new_tokens)
            if seen.sign.waiting or section in _PATIENT or seen.sign.stay <= limit or not (waiting or took):
                continue
            hangs = f"{seen.sign.who} hangs in {section} for {seen.sign.stay:.0f} s"
            if waiting:
                return f"{hangs}, and others wait for it; on them it took {took:.0f} s, and the limit is {limit:.0f} s"
            return f"{hangs}; before, it took {took:.0f} s at most, and the limit is {limit:.0f} s"
        return ""

    def gone(self) -> str:
        """Say, after a connection broke, who has ended, how and when; what the others were at where that does not
        show."""
        until = time.monotonic() + 4 * self.limits.every
        self.look()
        while time.monotonic() < until and self._suspects():
            for seen in self._suspects():
                if seen.sign.ended:
                    return f"{seen.sign.who} ended at {seen.since}: {seen.sign.ended}"
                if self._dead(seen):
                    return seen.missing
            time.sleep(0.1)
            self.look()
        return "; ".join(f"{seen.sign.who} was in {seen.sign.section}" for seen in self.seen.values())

    def _suspects(self) -> list[Seen]:
        """Signs of all ranks but those that another rank's end has ended."""
        return [seen for seen in self.seen.values() if not seen.sign.lost]

    def _dead(self, seen: Seen) -> bool:
        if seen.sign.host == socket.gethostname():
            try:
                state = Path(f"/proc/{seen.sign.pid}/stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                return True
            return state.rpartition(")")[2].split()[0] in "ZX"
        return time.monotonic() - seen.at > 3 * self.limits.every

    def _read(self, rank: int) -> Sign | None:
        try:
            return Sign(**json.loads(self.file(rank).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):  # not there yet, or read in the middle of a write
            return None


_AGAIN = (
    "look for the first error above; "
    "the same command goes on from the last checkpoint, also with another number of ranks"
)
_beating: list["Heartbeat"] = []  # that of this process


class LostRank(RunFailed):
    """Another rank died, was stopped or hangs. what: how it showed."""

    def __init__(self, rank: int, ranks: int, what: str):
        super().__init__(f"rank {rank} of {ranks}: {what}", where="a run over several ranks", fix=_AGAIN)


class Heartbeat:
    """This rank's signs, inside of a `with`; nothing happens in a run of one rank. give_up: gets the message before the
    thread ends the process."""

    def __init__(self, watch: Watch, give_up: Callable[[str], None] = lambda what: None):
        self.watch, self.give_up = watch, give_up
        self._number = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="heartbeat")

    def __enter__(self) -> "Heartbeat":
        if self.watch.others:
            with explain_write_errors(self.watch.folder):
                self.watch.folder.mkdir(parents=True, exist_ok=True)
            ACTIVITY.begin("start")
            self._thread.start()
            _beating.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not self.watch.others:
            return
        _beating.remove(self)
        self._over.set()
        self._thread.join()
        if error is not None:
            self._sign(str(error).split("\n")[0] or type(error).__name__, lost=isinstance(error, LostRank))
            return
        # No sign is left; by the first rank also none of an earlier start on more ranks. The last finds a folder empty.
        watch = self.watch
        others = {watch.file(rank) for rank in watch.others}
        with contextlib.suppress(OSError):
            for file in set(watch.folder.iterdir()) - others if watch.rank == 0 else {watch.file(watch.rank)}:
                file.unlink(missing_ok=True)
            watch.folder.rmdir()

    def _run(self) -> None:
        self._sign()
        while not self._over.wait(self.watch.limits.every):
            self._sign()
            self.watch.look()
            if what := self.watch.verdict():
                error = LostRank(self.watch.rank, self.watch.ranks, what)
                self._sign(error.what, lost=True)
                with contextlib.suppress(Exception):  # a full disk must not keep it
                    self.give_up(str(error))
                sys.stderr.write(spelt(f"error: {error}\n"))
                sys.stderr.flush()
                os._exit(error.exit_code)

    def _sign(self, ended: str = "", lost: bool = False) -> None:
        """Write one, in place: on a network file system a reader of a renamed file may see the old one for a minute."""
        self._number += 1
        now, watch = ACTIVITY, self.watch
        sign = Sign(
            rank=watch.rank,
            host=socket.gethostname(),
            pid=os.getpid(),
            number=self._number,
            section=now.section,
            waiting=now.waiting,
            stay=now.stay,
            longest=dict(now.longest),
            ended=ended,
            lost=lost,
        )
        file = watch.file(watch.rank)
        with contextlib.suppress(OSError), open(file, "w", encoding="utf-8", opener=no_link) as sink:
            sink.write(json.dumps(asdict(sign)))  # of a full disk something else will tell


def gone() -> str:
    """After a connection broke: who is missing and since when, where ranks give signs of life."""
    return _beating[0].watch.gone() if _beating else ""
