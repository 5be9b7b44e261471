"""A problem with a verifiable answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """`id` is unique within its set; `prompt` is the statement before any template; `answer` the gold as written in its
    source, empty where it has none. `family` names the generator task or the subject, for breakdowns. `columns`: those
    of its row that rewards of a user's own are given (`data.columns`), as JSON has them. `system`: what the system says
    before it, where the data's own system prompts are kept."""

    id: str
    prompt: str
    answer: str
    family: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict, hash=False)
    system: str = ""
