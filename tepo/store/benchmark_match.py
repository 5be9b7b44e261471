"""Checks that a stored result is one of the benchmark as it is declared now.

A result of another definition must not stand in a table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tepo.common.errors import UserError
from tepo.problems.benchmarks import Benchmark
from tepo.store.evaluation_result import Result


def is_current(task: Mapping[str, Any], benchmark: Benchmark, prompts: Mapping[str, Any]) -> bool:
    """Tell whether `check_current` accepts a result of this task."""
    today = {"fingerprint": benchmark.fingerprint, "grading": benchmark.grading, **prompts}
    return all(task.get(key, value) == value for key, value in today.items())


def check_current(folder: Path, result: Result, benchmark: Benchmark, prompts: Mapping[str, Any]) -> None:
    """Raise UserError for a result measured on other problems, by another protocol, or (`prompts`: wrap, thinking)
    with other prompts around them, and for one graded by other settings.
    What the result does not say is not held against it."""
    task = result.task
    away = f"move {folder} away and let it be measured anew"
    if task.get("fingerprint", benchmark.fingerprint) != benchmark.fingerprint:
        fix = f"undo the change of the benchmark, or {away}"
        raise UserError(
            f"{benchmark.name} was measured under another definition of the benchmark", where=str(folder), fix=fix
        )
    different = [key for key, value in prompts.items() if task.get(key, value) != value]
    if different:
        said = ", ".join(f"{key} {task[key]}, not {prompts[key]}" for key in different)
        raise UserError(
            f"{benchmark.name} was measured with {said}", where=str(folder), fix=f"the same settings, or {away}"
        )
    if task.get("grading", benchmark.grading) != benchmark.grading:
        fix = f"`tepo regrade {folder}`, or undo the change"
        raise UserError(
            f"{benchmark.name} was graded under other settings of the benchmark (grader, tolerances)",
            where=str(folder),
            fix=fix,
        )
