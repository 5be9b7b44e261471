"""Measuring a run or a base on the screen, and the record of what that cost. Imported when it runs."""

import time
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from tepo.config.schema import RunConfig
from tepo.evaluation.result import Result
from tepo.studies.cost import Cost, record, work_of
from tepo.studies.measure import measure_run
from tepo.studies.validate import final_validation, validate_run, validation_share
from tepo.training.run_folder import RunFolder
from tepo_cli.screen import benchmark_bar, fixed, say, show


def measure_and_record(
    config: RunConfig,
    benchmarks: Sequence[str],
    trained: Sequence[dict[str, Any]] | None,
    *,
    quiet: bool,
    validate: bool = False,
) -> None:
    """Measure a run (trained: the metrics of the steps this process added) or a base (None), validate the run if asked,
    print the accuracies, and add what the process cost to the run's record."""
    run = RunFolder.of_base(config) if trained is None else RunFolder.of(config)
    started, before = time.process_time(), len(run.measured())
    if benchmarks:
        with benchmark_bar(len(benchmarks), quiet) as report:
            results = measure_run(config, benchmarks, trained=trained is not None, report=report)
        _show(run, results)
    rows, new = trained or [], float(len(run.measured()) - before)
    if validate:
        new += validation_share(config) * (final_validation(run, config) is None)
        say(f"right responses to validation problems: {validate_run(config):.1%}")
    if rows or new:
        cost = Cost(
            data=config.data.name,
            objective=str(config.objective["name"]) if trained is not None else "",
            steps=len(rows),
            benchmarks=new,
            cpu_s=time.process_time(),
            training_s=sum(row["perf/cpu_s"] for row in rows),
            measuring_s=time.process_time() - started,
            tokens=int(sum(row["perf/sampled_tokens"] for row in rows)),
            core_s=sum(row["perf/cpu_core_s"] for row in rows),
            work=work_of(config),
        )
        record(run, cost)


def _show(run: RunFolder, results: Sequence[Result]) -> None:
    """Accuracies with their intervals."""
    table = Table(*map(fixed, ("benchmark", "accuracy %", "95%")), title=run.path.name)
    for result in results:
        ends = "–" if result.interval is None else " – ".join(f"{100 * end:.1f}" for end in result.interval)
        table.add_row(result.benchmark, f"{100 * result.accuracy:.1f}", ends)
    show(table, stderr=True)
