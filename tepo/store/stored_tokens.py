"""Per-token diagnostics of a training step.

A dump is one JSON file, `<run>/tokens/step_000036.json`, written by the training loop:

    {"format": 1, "step": 36, "objective": "tepo",
     "responses": [
       {"prompt": "12+34=", "answer": "46", "reward": 1.0, "finished": true, "group": 0,
        "tokens": ["4", "6", "<eos>"],              decoded one by one, T strings
        "values": {"advantage": [0.9, 0.9, 0.9],    T numbers each (null: not defined there)
                   "ratio": [...], "log_ratio": [...], "entropy": [...], "entropy_change": [...],
                   "kl_mask": [0, 1, 0], "clipped": [...], "kl": [...], "weight": [...]}}]}

`values` holds what the objective's per-token diagnostics are called (`tepo.objectives`), plus `entropy`, that of the
old policy in nats; any of them may be absent. `group` numbers the prompt within the step.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tepo.common.errors import UserError
from tepo.common.files import parse_json

FORMAT = 1

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
        fix = "restore it from a copy, or move it away: only the token view needs it"
        raise UserError(f"not a token dump: {error}", where=str(path), fix=fix) from None


def parse_dump(data: Any) -> TokenDump:
    """The dump in a parsed JSON value; a value that is not finite is as one that is not there. Raises ValueError,
    TypeError, LookupError, AttributeError or OverflowError for what training did not write."""
    if data["format"] != FORMAT:
        raise ValueError(f"expected format {FORMAT}, found {data['format']}")
    responses = []
    for one in data["responses"]:
        values = {
            name: [None if number is None or not math.isfinite(number) else float(number) for number in numbers]
            for name, numbers in one["values"].items()
        }
        said = str(one["prompt"]), str(one["answer"]), float(one["reward"]), bool(one["finished"]), int(one["group"])
        responses.append(TokenResponse(*said, [*map(str, one["tokens"])], values))
    return TokenDump(int(data["step"]), str(data["objective"]), tuple(responses))
