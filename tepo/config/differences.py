"""Settings that tell configurations apart that are called the same."""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from tepo.common.files import content_hash

NOT_A_SETTING = ("seed", "store", "tracking.", "train.token_dump_every")
"""Beginnings of keys that are shown by themselves, or have no say in what is trained."""


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested keys joined by dots, values as text; of a text of many lines (a Python file) its hash."""
    result: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            result |= flat(value, f"{prefix}{key}.")
        else:
            text = "" if value is None else str(value)
            result[prefix + str(key)] = content_hash(text) if "\n" in text else text
    return result


def settings_apart(called: Sequence[Hashable], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Settings (`train.epochs=1 …`) in which each configuration differs from the most usual value among those that are
    called the same; empty for those that are alike."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, name in enumerate(called):
        groups[name].append(index)
    result = [""] * len(configs)
    for members in (members for members in groups.values() if len(members) > 1):
        settings = _differing([configs[index] for index in members])
        keys = [key for key in dict.fromkeys(itertools.chain(*settings)) if not key.startswith(NOT_A_SETTING)]
        counts = {key: Counter(flat_config.get(key, "") for flat_config in settings) for key in keys}
        # of equally frequent values the one that nobody set, then the first
        usual = {key: max(counter, key=lambda value: (counter[value], value == "")) for key, counter in counts.items()}
        for index, flat_config in zip(members, settings, strict=True):
            apart = [
                f"{typed(key)}={flat_config.get(key, '')}" for key in keys if flat_config.get(key, "") != usual[key]
            ]
            # a line or a constant that a formula reads no more: another line says why
            result[index] = " ".join(word for word in apart if not (word.startswith("objective.") and word[-1] == "="))
    return result


def typed(key: str) -> str:
    """A key as it is set on the command line: constants and lines of an objective by their names."""
    return re.sub(r"^objective\.(formula|constants)\.", "objective.", key)


def _differing(configs: Sequence[Mapping[str, Any]], prefix: str = "") -> list[dict[str, str]]:
    """Each configuration flat, without the sections that are the same in all: of thousands of runs most are."""
    first, result = configs[0], [dict[str, str]() for _ in configs]
    for key in dict.fromkeys(itertools.chain(*configs)):
        if all(key in config and config[key] == first.get(key) for config in configs):
            continue
        sections = [value for config in configs if isinstance(value := config.get(key), Mapping) and value]
        if len(sections) == len(configs):
            parts = _differing(sections, f"{prefix}{key}.")
        else:
            parts = [flat({key: config[key]}, prefix) if key in config else {} for config in configs]
        for flat_config, part in zip(result, parts, strict=True):
            flat_config |= part
    return result
