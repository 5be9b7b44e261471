"""CPU time of commands at their start, in turn in one run:
`tepo --help` against `import typer`, a table from records against what reads it, others against `import torch`.

The store of the others holds one evaluation of the untrained policy,
so that `eval` finds its result and `plan` its price.
"""

import resource
import subprocess
import tempfile
from statistics import median
from typing import Any

from tepo.common import interpreter

TEPO = interpreter.command("-m", "tepo_cli")
_TORCH, _FRAMES = "import torch", "import pandas, pyarrow.parquet"
COMMANDS = {  # words: how many times this it may take
    "list": (_TORCH, 2.0),
    "plan panel-e --brief": (_TORCH, 2.0),
    "table panel-e --records": (_FRAMES, 2.0),
    "train --dry-run": (_TORCH, 3.0),
    "eval add3 --model package:laptop --quiet": (_TORCH, 3.0),
    "explain tepo": (_TORCH, 1.5),
}


def cpu_seconds(command: list[str], folder: str | None = None) -> float:
    """User and system seconds of one finished process and of those that it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    output, environment = subprocess.DEVNULL, interpreter.environment()
    subprocess.run(command, stdout=output, stderr=output, check=True, cwd=folder, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(rounds: int = 9) -> dict[str, Any]:
    """Medians over pairs and the median of the paired ratios, for `tepo --help`."""
    ours, theirs = [*TEPO, "--help"], interpreter.command("-c", "import typer")
    pairs = [(cpu_seconds(ours), cpu_seconds(theirs)) for _ in range(rounds + 1)][1:]
    return _summary(pairs)


def measure_commands(rounds: int = 5) -> dict[str, dict[str, float]]:
    """The same for each of COMMANDS against the mean of its imports before and after it."""
    imported = {code: interpreter.command("-c", code) for code, _ in COMMANDS.values()}
    pairs: dict[str, list[tuple[float, float]]] = {words: [] for words in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        cpu_seconds([*TEPO, "base", "data.benchmarks=[add3]", "--quiet"], folder)
        before = {code: cpu_seconds(command) for code, command in imported.items()}
        for _ in range(rounds):
            for words, (code, _) in COMMANDS.items():
                ours, after = cpu_seconds([*TEPO, *words.split()], folder), cpu_seconds(imported[code])
                pairs[words].append((ours, (before[code] + after) / 2))
                before[code] = after
    return {words: _summary(found) for words, found in pairs.items()}


def _summary(pairs: list[tuple[float, float]]) -> dict[str, float]:
    return {
        "ours_s": median(ours for ours, _ in pairs),
        "peer_s": median(peer for _, peer in pairs),
        "ratio": median(ours / peer for ours, peer in pairs),
    }


if __name__ == "__main__":
    for name, found in {"--help": measure(), **measure_commands()}.items():
        print(f"tepo {name:42}", *(f"{key} {value:.3f}" for key, value in found.items()))
