"""Per-token diagnostics of a training step, and an excerpt of them of a run whose reward fell.

A dump is one JSON file, `<run>/tokens/step_000036.json`, written by the training loop; docs/tables.md has its form.
`values` holds T numbers each (null: not defined there), called as the objective's per-token diagnostics are
(`tepo.objectives`), plus `entropy`, that of the old policy in nats; any of them may be absent. `group` numbers the
prompt within the step.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from tepo.common.errors import UserError
from tepo.common.files import parse_json
from tepo.store.early_stop import Ending, read_ending

FORMAT = 1
MOVE_AWAY = "restore it from a copy, or move it away: only the token view needs it"

Values = list[float | None]


@dataclass(frozen=True)
class TokenResponse:
    """One response: T token texts and named values of length T. group: number of its prompt within the step."""

    prompt: str
    answer: str
    reward: float
    finished: bool
    group: int
    tokens: list[str]
    values: dict[str, Values]

    def __post_init__(self) -> None:
        odd = [name for name, numbers in self.values.items() if len(numbers) != len(self.tokens)]
        if odd:
            raise ValueError(f"{odd[0]!r} does not have {len(self.tokens)} numbers")


@dataclass(frozen=True)
class TokenDump:
    """Data that one training step left for the token view."""

    step: int
    objective: str
    responses: tuple[TokenResponse, ...]


def read_dump(path: Path) -> TokenDump:
    """Read and check a dump. Raises UserError naming the response whose arrays do not fit its tokens."""
    try:
        return parse_dump(parse_json(path.read_bytes()))
    except OSError as error:
        fix = "train with train.token_dump_every=N, or look at another step"
        raise UserError("cannot read the token dump", where=str(path), fix=fix) from error
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise UserError(f"not a token dump: {error}", where=str(path), fix=MOVE_AWAY) from None


def parse_dump(data: Any) -> TokenDump:
    """The dump in a parsed JSON value; a value that is not finite is as one that is not there. Raises ValueError,
    TypeError, LookupError, AttributeError or OverflowError for what training did not write."""
    if data["format"] != FORMAT:
        raise ValueError(f"expected format {FORMAT}, found {data['format']}")
    responses = []
    for response in data["responses"]:
        values = {
            name: [None if number is None or not math.isfinite(number) else float(number) for number in numbers]
            for name, numbers in response["values"].items()
        }
        fields = (
            str(response["prompt"]),
            str(response["answer"]),
            float(response["reward"]),
            bool(response["finished"]),
            int(response["group"]),
        )
        responses.append(TokenResponse(*fields, [*map(str, response["tokens"])], values))
    return TokenDump(int(data["step"]), str(data["objective"]), tuple(responses))


RESPONSES = 4  # of a passage
KEPT = 0.5  # of the highest reward: a step with as much comes before the fall
_LAST = 2  # steps whose mean must lie below it: a single one of few prompts may by chance
_STEP, _REWARD = "training/global_step", "critic/score/mean"
_VALUES = ("entropy", "entropy_change")


@dataclass(frozen=True)
class Passage:
    """A few responses of a step. reward: mean of all responses that the step drew."""

    reward: float
    dump: TokenDump


@dataclass(frozen=True)
class Excerpt:
    """before, after: responses of the last step of which the reward had not fallen, and of the run's last step.
    ending: of the run that they are from."""

    before: Passage
    after: Passage
    ending: Ending | None


def excerpt_of(rows: Sequence[Mapping[str, Any]], ending: Ending | None, dumps: Mapping[int, Path]) -> Excerpt | None:
    """The first responses of two dumps: of the last one whose step had at least `KEPT` of the run's highest reward, and
    of the last of all. None where the last steps had as much, so nothing fell, or where dumps are missing. rows: the
    run's metrics. dumps: by step. Raises UserError for a damaged dump."""
    rewards = {row[_STEP]: row[_REWARD] for row in rows if _REWARD in row}
    if not rewards or max(rewards) not in dumps:
        return None
    enough, last = KEPT * max(rewards.values()), [rewards[step] for step in sorted(rewards)[-_LAST:]]
    kept_steps = [step for step in dumps if rewards.get(step, 0.0) >= enough]
    if not kept_steps or max(kept_steps) == max(rewards) or fmean(last) >= enough:
        return None
    before, after = (Passage(rewards[step], _short(read_dump(dumps[step]))) for step in (max(kept_steps), max(rewards)))
    return Excerpt(before, after, ending)


def pack_excerpt(excerpt: Excerpt) -> dict[str, Any]:
    """A value for JSON."""
    return {
        "ending": excerpt.ending and asdict(excerpt.ending),
        **{
            name: {"reward": passage.reward, "format": FORMAT, **asdict(passage.dump)}
            for name, passage in (("before", excerpt.before), ("after", excerpt.after))
        },
    }


def unpack_excerpt(value: Mapping[str, Any]) -> Excerpt:
    """Raises ValueError, TypeError or KeyError for what `pack_excerpt` did not make."""
    before, after = (Passage(float(value[name]["reward"]), parse_dump(value[name])) for name in ("before", "after"))
    return Excerpt(before, after, None if value["ending"] is None else read_ending(value["ending"]))


def _short(dump: TokenDump) -> TokenDump:
    """The first response to each prompt, then the second ones, until they are enough: prompts and responses in the
    order in which they were drawn. Values with three digits."""
    counts: Counter[int] = Counter()
    turns = []
    for response in dump.responses:
        turns.append((counts[response.group], response.group, response))
        counts[response.group] += 1
    first = sorted(turns, key=lambda turn: turn[:2])[:RESPONSES]
    return replace(dump, responses=tuple(replace(response, values=_shown(response)) for *_, response in first))


def _shown(response: TokenResponse) -> dict[str, list[float | None]]:
    return {
        name: [None if number is None else float(f"{number:.3g}") for number in response.values[name]]
        for name in _VALUES
        if name in response.values
    }
