"""Signs of life of the ranks of a run, and the end of a rank that would wait for a lost one.

Each rank has a thread that writes a small file into the run's folder every few seconds, and reads those of the others.
When one is missing or hangs (`liveness`), the thread ends its process with a message: what trains waits in a
collective, out of which no exception leads.
"""

import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict

from tepo.common.errors import RunFailed
from tepo.common.files import explain_write_errors, no_link
from tepo.common.text import spelt
from tepo.training.distributed.liveness import ACTIVITY, Sign, Watch

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
