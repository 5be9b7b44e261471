"""Ten named runs and the hashes of what they end with.

`runs.json`: `runs`, the words of each; `hashes`, by kind of CPU and torch, of its metrics and of its weights. Another
kind of CPU rounds otherwise: there a commit is compared with the one before it, on one machine.
"""

import json
from hashlib import sha256
from pathlib import Path

import torch

from perf.ratios import machine
from tepo.config.compose import compose
from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.runs import SMALL, lasting, weights

FILE = Path(__file__).with_name("runs.json")


def reference_runs() -> dict[str, list[str]]:
    """The words of each run behind those that make it small."""
    return {name: words.split() for name, words in json.loads(FILE.read_text())["runs"].items()}


def kind() -> str:
    """The kind of CPU and torch that hashes are kept under."""
    facts = machine()
    return f"{facts['cpu']}, torch {facts['torch']}"


def recorded_hashes() -> dict[str, str]:
    """The two hashes of each run on this kind of CPU; none where nobody recorded them."""
    return dict(json.loads(FILE.read_text())["hashes"].get(kind(), {}))


def trained_hashes(name: str, store: Path) -> str:
    """Train a run in a store and hash what it ends with: its metrics and its weights."""
    torch.set_num_threads(1)
    config = compose([*SMALL, *reference_runs()[name], f"store={store}"])
    folder = train(Run(config))
    values = json.dumps(lasting(folder), sort_keys=True).encode()
    bits = sha256()
    for tensor, content in sorted(weights(folder).items()):
        bits.update(tensor.encode() + b"\0" + content)
    return f"{sha256(values).hexdigest()[:16]} {bits.hexdigest()[:16]}"


def record(hashes: dict[str, str]) -> None:
    """Keep the hashes of this kind of CPU."""
    known = json.loads(FILE.read_text())
    known["hashes"][kind()] = hashes
    FILE.write_text(json.dumps(known, indent=1) + "\n")
