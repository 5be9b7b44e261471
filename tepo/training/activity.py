"""What this process is at, for its sign of life (`heartbeat`) and for finding the slowest rank."""

import contextlib
import time
from collections.abc import Iterator


class Activity:
    """Of the thread that trains. section: by the names of `timing_s/*`. waiting: for other ranks, in a collective of
    ours. waited: seconds of it so far. longest: by section, the longest stretch of work between two collectives."""

    def __init__(self) -> None:
        self.section, self.waiting, self.waited = "start", False, 0.0
        self.longest: dict[str, float] = {}
        self._since = time.monotonic()

    @property
    def stay(self) -> float:
        """Seconds that it has worked, or waited, without a change."""
        return time.monotonic() - self._since

    @contextlib.contextmanager
    def inside(self, section: str) -> Iterator[None]:
        """A block that belongs to a section."""
        before = self.section
        self._turn(section)
        try:
            yield
        finally:
            self._turn(before)

    def begin(self, section: str) -> None:
        """What follows belongs to a section."""
        self._turn(section)

    @contextlib.contextmanager
    def meeting(self) -> Iterator[None]:
        """A collective: from here on others may be what is waited for."""
        self._turn(self.section)
        self.waiting = True
        try:
            yield
        finally:
            self.waiting = False
            self.waited += self.stay
            self._since = time.monotonic()

    def _turn(self, section: str) -> None:
        """Work goes over into another section, or into waiting."""
        self.longest[self.section] = max(self.longest.get(self.section, 0.0), self.stay)
        self.section, self._since = section, time.monotonic()


ACTIVITY = Activity()
