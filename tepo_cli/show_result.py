"""Outcome of a run, as `tepo train` and `tepo eval` show it. Imports no torch."""

import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tepo.common.text import counted
from tepo.jobs.measure import Request, measure, stored_base
from tepo.jobs.model_card import write_card
from tepo.reporting.progress import say
from tepo.store.evaluation_result import Result
from tepo.store.run_folder import RunFolder
from tepo.training.run import Run
from tepo_cli.screen import show


def is_complete(run: RunFolder, benchmarks: Sequence[str]) -> bool:
    """Tell whether a run is finished, measured on these and drawn, and its weights are there."""
    last = run.kept_step()
    has_outputs = last is not None and run.checkpoint(last).is_dir() and (run.figures / "training.svg").exists()
    return has_outputs and set(benchmarks) <= set(run.measured())


def show_finished(run: Run, words: Sequence[str], *, evaluate: bool) -> None:
    """Say that a run was finished before, and show its stored results where they are asked for. What a kill left is
    removed, and the card written from what is there. Raises UserError for a run that is not what it says."""
    config, folder = run.config, run.folder
    folder.check_whole()
    folder.clean_up()
    say_trained(folder, before=True)
    results = measure(Request.of(run, trained=True), config.data.benchmarks) if evaluate else []
    write_card(folder, tuple(config.objective.get("functions", {}).values()))
    show_beside_base(run, results, None, words)


def say_trained(run: RunFolder, *, before: bool = False) -> None:
    """Say where a finished run lies, and with what it ended. before: it was finished already."""
    ending, best = run.ending(), run.best()
    steps, on = counted(len(run.metrics()), "step"), ", ".join(run.measured())
    summary = f"finished already: {run.path}, {steps}, {f'measured on {on}' if on else 'not measured yet'}"
    say(summary if before else f"run {run.path.name}: {steps}, {run.path}")
    if ending is not None:
        weights = f"those after {best or f'step {ending.step - 1}'}" if ending.step > 1 else "those it started from"
        say(f"training ended with {ending}: {ending.why}. The run counts as finished; its weights are {weights}")
        if run.examples_file.is_file():
            say(f"a few of its responses: {run.examples_file}")
    elif best is not None:
        say(f"its weights are those after {best}")


def show_beside_base(run: Run, results: Sequence[Result], validation: float | None, words: Sequence[str]) -> None:
    """Show the results of a run beside those of its base, and say how to measure the base where it is not. words: that
    the run was asked for by."""
    names = [result.benchmark for result in results]
    base = stored_base(run, names)
    show_results(run.folder, results, validation, base)
    if len(base) < len(names):
        lacking = counted(len(names) - len(base), "benchmark")
        model = shlex.quote(shlex.join(["base", *words]))
        say(f"the base is not measured on {lacking}, this measures it: tepo eval -m {model}")


def show_results(
    run: RunFolder,
    results: Sequence[Result],
    validation: float | None,
    base: Mapping[str, Result] = MappingProxyType({}),
) -> None:
    """A table of accuracies with their intervals, that of the base beside them where it is known, and the share of
    right responses to validation problems."""
    if results or validation is not None:
        heads, rows = ("benchmark", "accuracy %", "95%", *(["base %"] if base else [])), list[tuple[str, ...]]()
        for result in results:
            ends = "–" if result.interval is None else " – ".join(f"{100 * end:.1f}" for end in result.interval)
            base_result = base.get(result.benchmark)
            beside = [f"{100 * base_result.accuracy:.1f}" if base_result else "–"] if base else []
            rows.append((result.benchmark, f"{100 * result.accuracy:.1f}", ends, *beside))
        if validation is not None:
            rows.append(("validation problems", f"{100 * validation:.1f}", *"––"[: len(heads) - 2]))
        show(heads, rows, run.path.name)
