"""Start a test module as two gloo ranks and read what rank 0 wrote."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch


def run_ranks(module: str, target: Path, seconds: float = 240) -> Any:
    """Run `python -m module target` as ranks 0 and 1; both must exit with 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    root = Path(__file__).parents[2]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(target)],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=root,
        )
        for rank in range(2)
    ]
    try:
        assert [rank.wait(timeout=seconds) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    return torch.load(target)
