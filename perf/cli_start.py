"""CPU time of commands at their start: `tepo --help` against `import typer`, a table from records against what reads
it, others against `import torch`."""

import resource
import subprocess
import tempfile

from perf.ratios import BenchmarkRow, beside, in_turn
from tepo.common import interpreter

_TORCH, _FRAMES, _TYPER = "import torch", "import pandas, pyarrow.parquet", "import typer"
COMMANDS = {  # words: how many times this it may take
    "list": (_TORCH, 2.0),
    "plan panel-e --brief": (_TORCH, 2.0),
    "table panel-e --records": (_FRAMES, 2.0),
    "train --dry-run --show-config": (_TORCH, 3.0),
    "eval add3 --model package:laptop --quiet": (_TORCH, 3.0),
    "explain tepo": (_TORCH, 1.5),
}


def measure(turns: int, short: bool) -> list[BenchmarkRow]:
    """The store holds an evaluation of the untrained policy, so that `eval` finds its result and `plan` its price."""
    with tempfile.TemporaryDirectory() as folder:

        def run(*words: str) -> float:
            """User and system seconds of one process and of those that it waited for."""
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command, environment = interpreter.command(*words), interpreter.environment()
            subprocess.run(command, capture_output=True, check=True, cwd=folder, env=environment)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        run("-m", "tepo_cli", "eval", "-m", "base data.benchmarks=[add3]", "--quiet")
        sides = {words: lambda turn, words=words: run("-m", "tepo_cli", *words.split()) for words in COMMANDS}
        sides |= {code: lambda turn, code=code: run("-c", code) for code in (_TORCH, _FRAMES)}
        quick = {"--help": lambda turn: run("-m", "tepo_cli", "--help"), _TYPER: lambda turn: run("-c", _TYPER)}
        found = in_turn(sides, turns) | in_turn(quick, 3 * turns)
    rows = {"--help": (_TYPER, 1.5), **COMMANDS}
    return [
        beside(
            f"tepo {words.partition(' --model')[0]} / {code}", "CPU s", found[words], found[code], limit, guarded=True
        )
        for words, (code, limit) in rows.items()
    ]
