"""CPU time of `tepo --help` against `python -c "import typer"`, in turn in one run."""

import resource
import subprocess
import sys
from statistics import median
from typing import Any


def cpu_seconds(command: list[str]) -> float:
    """User and system seconds of one finished process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(rounds: int = 9) -> dict[str, Any]:
    """Medians over pairs and the median of the paired ratios."""
    ours, theirs = [sys.executable, "-m", "tepo_cli", "--help"], [sys.executable, "-c", "import typer"]
    pairs = [(cpu_seconds(ours), cpu_seconds(theirs)) for _ in range(rounds + 1)][1:]
    return {
        "name": "tepo --help / import typer (CPU time)",
        "ours_s": median(ours for ours, _ in pairs),
        "peer_s": median(peer for _, peer in pairs),
        "ratio": median(ours / peer for ours, peer in pairs),
        "target": "<= 1.5",
    }


if __name__ == "__main__":
    for key, value in measure().items():
        print(f"{key:10} {value if isinstance(value, str) else round(value, 3)}")
