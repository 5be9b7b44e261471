"""The content of a user's folder but for what differs between two equal runs: times, costs, versions and random names.

A process writes at its end what it has cost, so that one that dies leaves nothing of it."""

import contextlib
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tepo.training.metrics.metrics_log import VOLATILE

State = dict[str, str]
"""Hex digest by name of the file, "folder" of an empty folder."""

_RANDOM = re.compile(r"\.[0-9a-f]{8}(?=/|$)|(?<=/\.tmp)\w{6}(?=/|$)")  # ends of names: ours, and those of safetensors


def lasting_name(path: str) -> str:
    """A path without the random parts that hidden names have."""
    return _RANDOM.sub("~", path)


def read_state(home: Path, *, leftovers: bool = False) -> State:
    """leftovers: also hidden files and folders outside of the store, which no lock guards: nobody reads or removes
    what a process that died left of a page or of records."""
    state: State = {}
    for path in sorted(home.rglob("*")):
        name = str(path.relative_to(home))
        if path.name == "cost.json" or path.name.endswith(".lock") or (path.is_dir() and any(path.iterdir())):
            continue
        lasting = lasting_name(name)
        if lasting != name and not leftovers and not name.startswith("runs/"):
            continue
        state[lasting] = "folder" if path.is_dir() else _digest(path)
    return state


def key_of(state: State) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:16]


def _digest(path: Path) -> str:
    content = path.read_bytes()
    lasting = next((lasting for end, lasting in _LASTING.items() if path.name.endswith(end)), None)
    if lasting:
        with contextlib.suppress(ValueError, KeyError, TypeError):  # half-written
            content = json.dumps(lasting(content), sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def _metrics(content: bytes) -> list[dict[str, Any]]:
    rows = map(json.loads, content.decode().splitlines())
    return [{key: value for key, value in row.items() if not key.startswith(VOLATILE)} for row in rows]


def _without(*keys: str) -> Callable[[bytes], dict[str, Any]]:
    return lambda content: {key: value for key, value in json.loads(content).items() if key not in keys}


def _tensors(content: bytes) -> dict[str, Any]:
    """The tensors of a safetensors file by name: the order of its header differs."""
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    return {
        name: value if name == "__metadata__" else [value["dtype"], value["shape"], _hex(data, *value["data_offsets"])]
        for name, value in header.items()
    }


def _hex(data: bytes, first: int, last: int) -> str:
    return hashlib.sha256(data[first:last]).hexdigest()


_LASTING: dict[str, Callable[[bytes], Any]] = {
    "metrics.jsonl": _metrics,
    "manifest.json": _without("time"),
    "progress.json": _without("sha256", "own_sha256"),
    "provenance.json": lambda content: isinstance(json.loads(content)["sessions"], list),
    ".safetensors": _tensors,
    "README.md": lambda content: [line for line in content.decode().splitlines() if not line.startswith("- tepo ")],
}
