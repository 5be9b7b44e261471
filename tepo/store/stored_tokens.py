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
        raise UserError(
            "cannot read the token dump",
            where=str(path),
            fix="train with train.token_dump_every=N, or look at another step",
        ) from error
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(
            f"not a token dump: {error}",
            where=str(path),
            fix="restore it from a copy, or move it away: only the token view needs it",
        ) from None


def parse_dump(data: Any) -> TokenDump:
    """The dump in a parsed JSON value. Raises ValueError saying what is wrong and where."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        actual = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"expected format {FORMAT}, found {actual}")
    if not isinstance(data.get("responses"), list):
        raise ValueError("no list of responses")
    return TokenDump(
        int(data.get("step", 0)),
        str(data.get("objective", "")),
        tuple(_response(item, index) for index, item in enumerate(data["responses"])),
    )


def _response(item: Any, index: int) -> TokenResponse:
    if not isinstance(item, dict) or not isinstance(item.get("tokens"), list):
        raise ValueError(f"response {index} has no list of tokens")
    tokens = [str(token) for token in item["tokens"]]
    values = {}
    for name, numbers in (item.get("values") or {}).items():
        if not isinstance(numbers, list) or len(numbers) != len(tokens):
            raise ValueError(f"response {index}: {name!r} does not have {len(tokens)} numbers")
        if not all(number is None or isinstance(number, (int, float)) for number in numbers):
            raise ValueError(f"response {index}: {name!r} holds something that is not a number")
        values[name] = [None if number is None or not math.isfinite(number) else float(number) for number in numbers]
    return TokenResponse(
        str(item.get("prompt", "")),
        str(item.get("answer", "")),
        float(item.get("reward", 0)),
        bool(item.get("finished", True)),
        int(item.get("group", 0)),
        tokens,
        values,
    )
