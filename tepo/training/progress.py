"""Where a run stands, as its checkpoints carry it."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """step: the last finished one. prompts: drawn so far. consumed: those of the last rollout (0: there was none)."""

    step: int = 0
    prompts: int = 0
    consumed: int = 0

    def record(self) -> dict[str, Any]:
        """What a checkpoint's `progress.json` says of it."""
        return asdict(self)
