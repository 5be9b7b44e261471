"""What this process is at, for its sign of life (`heartbeat`) and for finding the slowest rank."""

import contextlib
import time
from collections.abc import Iterator


class Activity:
    """Of the thread that trains. section: by the names of `timing_s/*`. waiting: for other ranks, in a collective of
    ours. waits: seconds of it so far by section. longest: by section, the longest stretch of work between two
    collectives. spent: by section, seconds in its blocks that nobody has taken yet."""

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
        """A block that belongs to a section."""
        before, begin = self.section, time.monotonic()
        self._turn(section)
        try:
            yield
        finally:
            self._turn(before)
            self.spent[section] = self.spent.get(section, 0.0) + time.monotonic() - begin

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
            self.waits[self.section] = self.waits.get(self.section, 0.0) + self.stay
            self._since = time.monotonic()

    def _turn(self, section: str) -> None:
        """Work goes over into another section, or into waiting."""
        self.longest[self.section] = max(self.longest.get(self.section, 0.0), self.stay)
        self.section, self._since = section, time.monotonic()


ACTIVITY = Activity()
