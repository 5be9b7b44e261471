"""Per-token diagnostics of a training step: the file format, and which kinds of tokens a mask takes.

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
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tepo.common.errors import UserError
from tepo.common.files import parse_json

FORMAT = 1
CLASSES = ("digit", "operator", "word", "answer", "other")

Values = list[float | None]

_OPERATORS = frozenset("+-−*×·/÷=<>≤≥^%&|~!()[]{}\\")


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


@dataclass(frozen=True)
class ClassCount:
    """tokens: how many of a class. masked: how many of them the mask takes, None without a mask. means: mean of each
    value over them."""

    name: str
    tokens: int
    masked: int | None
    means: dict[str, float | None]


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
            f"not a token dump: {error}", where=str(path), fix="delete the file; training writes it again"
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


def token_classes(tokens: Sequence[str]) -> list[str]:
    """One of CLASSES per token.

    What lies within the last complete box is `answer`; a token with several kinds of characters takes the first that
    applies of digit, word, operator.
    """
    text = "".join(tokens)
    first, last = _answer_span(text)
    classes, start = [], 0
    for token in tokens:
        inside = first <= start < last
        classes.append("answer" if inside and token else _kind(token))
        start += len(token)
    return classes


def _answer_span(text: str) -> tuple[int, int]:
    """Span of the content of the last complete `\\boxed{...}`; (0, 0) without one."""
    for match in reversed(list(re.finditer(r"\\boxed\s*\{", text))):
        depth = 1
        for index in range(match.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[index], 0)
            if depth == 0:
                return match.end(), index
    return 0, 0


@lru_cache(maxsize=4096)
def _kind(token: str) -> str:
    if re.fullmatch(r"<[^<>\s]+>", token):  # <eos> and its like
        return "other"
    if any(character.isdigit() for character in token):
        return "digit"
    if any(character.isalpha() for character in token):
        return "word"
    return "operator" if any(character in _OPERATORS for character in token) else "other"


def mask_of(response: TokenResponse) -> Values | None:
    """The KL mask that was applied, else TEPO's (A > 0 and falling entropy; Eq. 4) worked out from the values, else
    None."""
    if "kl_mask" in response.values:
        return response.values["kl_mask"]
    advantage, change = response.values.get("advantage"), response.values.get("entropy_change")
    if advantage is None or change is None:
        return None
    return [None if a is None or h is None else float(a > 0 and h < 0) for a, h in zip(advantage, change, strict=True)]


def class_counts(responses: Sequence[TokenResponse]) -> list[ClassCount]:
    """Counts and means over all tokens of each class, classes that occur only, then "all"."""
    names = np.array([name for response in responses for name in token_classes(response.tokens)])
    mask = _column(responses, [mask_of(response) for response in responses])
    columns = {
        value: _column(responses, [response.values.get(value) for response in responses])
        for value in dict.fromkeys(value for response in responses for value in response.values)
    }
    counts = []
    for name in (*CLASSES, "all"):
        inside = np.ones(len(names), dtype=bool) if name == "all" else names == name
        if inside.any():
            known = mask[inside & ~np.isnan(mask)]
            means: dict[str, float | None] = {
                value: float(numbers[inside & ~np.isnan(numbers)].mean())
                for value, numbers in columns.items()
                if not np.isnan(numbers[inside]).all()
            }
            counts.append(ClassCount(name, int(inside.sum()), int((known != 0).sum()) if len(known) else None, means))
    return counts


def _column(responses: Sequence[TokenResponse], values: Sequence[Values | None]) -> np.ndarray:
    """One number per token of all responses, NaN where there is none."""
    parts = [
        np.full(len(response.tokens), np.nan) if numbers is None else np.array(numbers, dtype=float)
        for response, numbers in zip(responses, values, strict=True)
    ]
    return np.concatenate(parts) if parts else np.empty(0)
