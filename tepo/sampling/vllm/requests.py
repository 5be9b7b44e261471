"""What an engine in this process knows of the requests under way: their tokens so far, and how often it preempted them.

Its own statistics cost time at every step; the objects of its scheduler are there anyway. Another vLLM may not have
them, and then nothing is known.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from tepo.sampling.sampler import GivenUp


class SeenRequests:
    """The requests of a queue, finished ones too."""

    def __init__(self, engine: Any) -> None:
        core = getattr(engine.engine_core, "engine_core", None)
        self._under_way: dict[str, Any] | None = getattr(getattr(core, "scheduler", None), "requests", None)
        self._seen: dict[str, Any] = {}
        self._dropped = 0

    def look(self) -> None:
        """Remember those that were just added."""
        self._seen |= self._under_way or {}

    @contextlib.contextmanager
    def dropping(self) -> Iterator[None]:
        """Requests are given up in the block, and those after them are not."""
        before = self._tokens
        yield
        self._dropped += before - self._tokens

    def given_up(self, waiting: int) -> GivenUp | None:
        """Of all seen so far, which are forgotten. waiting: tokens of finished responses that are given up too."""
        seen, self._seen = self._seen, {}
        tokens, self._dropped = waiting + self._tokens + self._dropped, 0
        if self._under_way is None or not all(hasattr(request, "num_output_tokens") for request in seen.values()):
            return None
        return GivenUp(tokens, sum(getattr(request, "num_preemptions", 0) for request in seen.values()))

    @property
    def _tokens(self) -> int:
        """Of the requests under way."""
        return sum(getattr(request, "num_output_tokens", 0) for request in (self._under_way or {}).values())
