"""Measuring a run or a base on the screen, and the record of what that cost. Imported when it runs."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from tepo.config.schema import RunConfig
from tepo.studies.measure import measure
from tepo.studies.price import Cost, record
from tepo_cli.screen import bar, show, whole


def measure_run(
    folder: Path, config: RunConfig, benchmarks: Sequence[str], trained: Sequence[dict[str, Any]] | None, *, quiet: bool
) -> None:
    """Measure a run (trained: the metrics of the steps this process added) or a base (None), print the accuracies, and
    add what the process cost to the run's record."""
    started, before = time.process_time(), _measured(folder)
    with bar("benchmarks", len(benchmarks), quiet or not benchmarks) as advance:
        done: list[str] = []

        def report(name: str, rows: int, total: int) -> None:
            if rows == total:
                done.append(name)
            advance(len(done), f"{name} {rows}/{total}")

        results = measure(folder, config, benchmarks, trained=trained is not None, report=report) if benchmarks else []
    if results:
        table = Table(*map(whole, ("benchmark", "accuracy %", "95%")), title=folder.name)
        for result in results:
            ends = "–" if result.interval is None else " – ".join(f"{100 * end:.1f}" for end in result.interval)
            table.add_row(result.benchmark, f"{100 * result.accuracy:.1f}", ends)
        show(table, stderr=True)
    rows, new = trained or [], _measured(folder) - before
    if rows or new:
        spent = [sum(row[name] for row in rows) for name in ("perf/cpu_s", "perf/sampled_tokens", "perf/cpu_core_s")]
        objective = str(config.objective["name"]) if trained is not None else ""
        record(
            folder,
            Cost(
                config.data.name,
                objective,
                len(rows),
                new,
                time.process_time(),
                spent[0],
                time.process_time() - started,
                int(spent[1]),
                spent[2],
            ),
        )


def _measured(folder: Path) -> int:
    return sum(1 for _ in folder.glob("eval/*/result.json"))
