"""`tepo train` in a process of its own, and what it leaves in its store."""

import importlib.util
import json
import subprocess
import time
from pathlib import Path

from tepo.common import interpreter
from tepo.store.run_folder import RunFolder


def start(words: list[str], store: Path, *before: str) -> "subprocess.Popen[str]":
    """`python -m BEFORE train WORDS`, by default with tepo_cli."""
    command = interpreter.command("-m", *(before or ("tepo_cli",)), "train", *words, f"store={store}", "--quiet")
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **streams, env=interpreter.environment(), text=True)


def finish(process: "subprocess.Popen[str]") -> None:
    """Wait for the end. Raises RuntimeError with what a failed run said."""
    _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"tepo train ended with {process.returncode}: {' '.join(errors.split())[-300:]}")


def kill_half_way(words: list[str], store: Path, steps: int) -> int:
    """Begin a run and kill it half-way, as a scheduler would. Returns its steps so far."""
    process = start(words, store)
    while len(rows(store)) < steps // 2 and process.poll() is None:
        time.sleep(0.02)
    done = len(rows(store))
    process.kill()
    process.communicate()
    return done


def rows(store: Path) -> list[dict]:
    """The metrics of the only run in a store, so far."""
    found = list(store.glob("*/metrics.jsonl"))
    return [json.loads(line) for line in found[0].read_text().splitlines() if line.endswith("}")] if found else []


def measured(store: Path) -> list[str]:
    """The benchmarks on which the only run in a store is measured."""
    return [name for path in store.glob("*/metrics.jsonl") for name in RunFolder(path.parent).measured()]


def need(*packages: str) -> None:
    """Raises ImportError for a package that is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"{package} is not installed")
