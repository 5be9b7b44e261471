"""What an engine in this process knows of the requests under way: their tokens so far, and how often it preempted them.

Its own statistics cost time at every step; the objects of its scheduler are there anyway. Another vLLM may not have
them, and then nothing is known.
"""

from typing import Any

from tepo.sampling.sampler import GivenUp


class SeenRequests:
    """The requests of a queue, finished ones too."""

    def __init__(self, engine: Any) -> None:
        core = getattr(engine.engine_core, "engine_core", None)
        self._under_way: dict[str, Any] | None = getattr(getattr(core, "scheduler", None), "requests", None)
        self._seen: dict[str, Any] = {}

    def look(self) -> None:
        """Remember those that were just added."""
        self._seen |= self._under_way or {}

    def given_up(self, waiting: int) -> GivenUp | None:
        """Of all seen so far, which are forgotten. waiting: tokens of finished responses that are given up too."""
        seen, self._seen = self._seen, {}
        if self._under_way is None:
            return None
        try:
            tokens = sum(request.num_output_tokens for request in self._under_way.values())
            return GivenUp(waiting + tokens, sum(request.num_preemptions for request in seen.values()))
        except AttributeError:
            return None
