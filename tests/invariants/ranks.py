"""Start a test module as two gloo ranks and read what rank 0 wrote."""

from pathlib import Path
from typing import Any

import torch

from tests.integration.commands import ranks


def run_ranks(module: str, target: Path, seconds: float = 240) -> Any:
    """Run `python -m module target` as ranks 0 and 1; both must exit with 0."""
    for rank in ranks(module, target):
        rank.end(seconds)
    return torch.load(target)
