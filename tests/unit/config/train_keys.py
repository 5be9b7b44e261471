"""docs/train-keys.md, from the types of the configuration:

    python -m tests.unit.config.train_keys

writes it."""

import re
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tepo.common.schema import Exclusive
from tepo.config.compose import compose
from tepo.config.run_config import RunConfig

PAGE = Path(__file__).parents[3] / "docs" / "train-keys.md"
SCALES = ("laptop", "smollm2", "single_gpu", "paper")
HEAD = """# The keys of a run

On this page you can look up every key that `tepo train` takes: `tepo train train.steps=40 data.flip_rewards=0.1`. A
study takes the same keys below `overrides:` and after `--set`. An objective has keys of its own, which
`tepo explain NAME` prints. The columns show what each scale sets. A dash is `null` or an empty list: nothing is set, or
tepo chooses for the machine and says so. `tepo train --dry-run --show-config` prints what your command sets.

"""
WORDS: dict[Any, str] = {int: "whole number", float: "number", str: "text", bool: "true, false"}


def values(hint: Any, meta: Any) -> str:
    """What a key takes."""
    origin, arguments = get_origin(hint), [one for one in get_args(hint) if one is not type(None)]
    if origin in (types.UnionType, Union):
        nothing = " or null" if type(None) in get_args(hint) else ""
        return " or ".join(values(one, meta) for one in arguments) + nothing
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in arguments)
    if origin in (list, tuple, dict):
        return "mapping" if origin is dict else "list"
    low, high = meta.get("low"), meta.get("high")
    bounds = [] if low is None else [f"{'above' if isinstance(low, Exclusive) else 'at least'} {low:g}"]
    if high not in (None, float("inf")):
        bounds.append(f"{'below' if isinstance(high, Exclusive) else 'at most'} {high:g}")
    return ", ".join([WORDS[hint], *bounds])


def shown(value: Any) -> str:
    if value is None or value == [] or value == {}:
        return "–"
    if isinstance(value, list | dict):
        return f"{len(value)} names"
    text = str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else f"{value}"
    return text[:8] if re.fullmatch(r"[0-9a-f]{40}", text) else text


def rows(kind: Any, parts: list[Any], prefix: str) -> Iterator[str]:
    """A line for each key; parts: the same section at each scale."""
    hints = get_type_hints(kind)
    for one in fields(kind):
        if not is_dataclass(hints[one.name]) and not one.metadata.get("derived"):
            at_scales = [shown(getattr(part, one.name)) for part in parts]
            takes = values(hints[one.name], one.metadata)
            yield f"| `{prefix}{one.name}` | {takes} | {' | '.join(at_scales)} | {one.metadata['meaning']} |"


def page() -> str:
    configs = [compose([f"scale={scale}"]) for scale in SCALES]
    hints = get_type_hints(RunConfig)
    sections = {"": ("The run", RunConfig, configs)}
    for one in fields(RunConfig):
        if is_dataclass(hints[one.name]):
            sections[f"{one.name}."] = (
                one.metadata["meaning"],
                hints[one.name],
                [getattr(config, one.name) for config in configs],
            )
    head = f"| key | values | {' | '.join(SCALES)} | meaning |\n|{'---|' * (len(SCALES) + 3)}\n"
    text = HEAD
    for prefix, (meaning, kind, parts) in sections.items():
        title = f"`{prefix}…`: {meaning}" if prefix else meaning
        text += f"## {title}\n\n{head}" + "".join(f"{line}\n" for line in rows(kind, parts, prefix)) + "\n"
    return text.rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
