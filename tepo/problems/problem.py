"""A problem with a verifiable answer."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """`id` is unique within its set; `prompt` is the statement before any template; `answer` the gold as written in its
    source. `family` names the generator task or the subject, for breakdowns."""

    id: str
    prompt: str
    answer: str
    family: str = ""
