"""Excerpts of runs that fell as the page shows them: before and after, tokens coloured by the change of entropy."""

import math
from dataclasses import dataclass
from statistics import fmean

from tepo.store.excerpt import Excerpt, Passage
from tepo.store.stored_tokens import TokenResponse

_LEVELS = 6  # of a colour
_OUTLIERS = 0.02  # of the changes lie beyond the end of the scale


@dataclass(frozen=True)
class ShownResponse:
    """facts: of its tokens, in words. tokens: class of the colour ("" for none) and text of each."""

    prompt: str
    right: bool
    facts: str
    tokens: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ShownPassage:
    title: str
    facts: str
    responses: tuple[ShownResponse, ...]


@dataclass(frozen=True)
class ShownExcerpt:
    """run: its id. limit: the change of entropy at the ends of the colours. origin: which run it is from."""

    run: str
    title: str
    passages: tuple[ShownPassage, ShownPassage]
    limit: str
    origin: str


def shown_excerpt(run: str, title: str, excerpt: Excerpt) -> ShownExcerpt:
    """Both passages in the same colours."""
    sizes = sorted(
        abs(change)
        for passage in (excerpt.before, excerpt.after)
        for response in passage.dump.responses
        for change in response.values.get("entropy_change", ())
        if change is not None
    )
    limit = (sizes[math.ceil((1 - _OUTLIERS) * len(sizes)) - 1] if sizes else 0.0) or 1.0
    last = f"; it ended with {excerpt.ending}" if excerpt.ending else ""
    passages = (_passage("Before", excerpt.before, "", limit), _passage("After", excerpt.after, last, limit))
    return ShownExcerpt(run, title, passages, f"{limit:.2g}", _origin(excerpt))


def _origin(excerpt: Excerpt) -> str:
    again = excerpt.again
    if again is None:
        return ""
    day = str(again.made[0].get("started"))[:10] if again.made else "an unknown day"
    said = f"These two dumps come from a run made again on {day} with the same settings"
    if again.differs == 0:
        return f"{said}; it equals the recorded one in all figures on record."
    return (
        f"{said}. From step {again.differs} on its figures are others than the recorded ones above: they are equal on "
        "the same kind of processor and the same versions alone."
    )


def _passage(title: str, passage: Passage, ending: str, limit: float) -> ShownPassage:
    facts = f"step {passage.dump.step}, reward {passage.reward:.2f}{ending}"
    return ShownPassage(title, facts, tuple(_response(one, limit) for one in passage.dump.responses))


def _response(response: TokenResponse, limit: float) -> ShownResponse:
    changes = response.values.get("entropy_change", [None] * len(response.tokens))
    facts = [
        f"{name} {fmean(known):{form}}".replace("-", "−")
        for key, name, form in (("entropy", "mean entropy", ".3f"), ("entropy_change", "change", "+.3f"))
        if (known := [number for number in response.values.get(key, ()) if number is not None])
    ]
    return ShownResponse(
        response.prompt,
        response.reward > 0,
        ", ".join([*facts, *([] if response.finished else ["cut off at the length limit"])]),
        tuple((_level(change, limit), _visible(token)) for token, change in zip(response.tokens, changes, strict=True)),
    )


def _level(change: float | None, limit: float) -> str:
    """h1 … for a token that became less sure, c1 … for one that became surer."""
    level = 0 if change is None else round(_LEVELS * max(-1.0, min(1.0, change / limit)))
    return f"{'h' if level > 0 else 'c'}{abs(level)}" if level else ""


def _visible(token: str) -> str:
    return token.replace("\n", "↵\n").replace("\t", "→\t") or "∅"
