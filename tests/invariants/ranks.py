"""Start a test module as two gloo ranks and read what rank 0 wrote."""

import socket
from pathlib import Path
from typing import Any

import torch

from tests.integration.commands import program


def run_ranks(module: str, target: Path, seconds: float = 240) -> Any:
    """Run `python -m module target` as ranks 0 and 1; both must exit with 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [program(module, target, RANK=rank, LOCAL_RANK=rank, **shared) for rank in "01"]
    for done in [rank.end(seconds) for rank in ranks]:
        assert done.returncode == 0, done.stderr[-2000:]
    return torch.load(target)
