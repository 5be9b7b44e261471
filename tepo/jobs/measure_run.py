"""Measuring a run or a base with a bar, and the record of what that cost."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tepo.config.run_config import RunConfig
from tepo.jobs.child_process import CpuSeconds, in_own_process, measures_apart
from tepo.jobs.measure import measure_run, measure_run_with
from tepo.jobs.shared_engine import OneEngine
from tepo.jobs.validate import final_validation, validate_run, validation_share
from tepo.reporting.progress import benchmark_bar
from tepo.store.cost import Cost, record, work_of
from tepo.store.evaluation_result import Result
from tepo.store.run_folder import RunFolder
from tepo.training.preflight import check_benchmarks, check_measurable, check_validation_problems


@dataclass(frozen=True)
class Measured:
    """Results on benchmarks, and the share of right responses to validation problems where it was asked for."""

    results: Sequence[Result]
    validation: float | None


@dataclass(frozen=True)
class After:
    """What is done with a trained run: measure it on the benchmarks of its data, and on validation problems.

    cpu_before: CPU seconds of this process that are not the run's. engine: what measures it, and others before and
    after it."""

    evaluate: bool = False
    validate: bool = False
    cpu_before: float = 0.0
    engine: OneEngine | None = None

    def check(self, config: RunConfig) -> None:
        """Raises UserError for what cannot be done: now, and not after an hour of training."""
        if self.evaluate:
            check_measurable(config)
            stored = RunFolder.of(config).measured()
            check_benchmarks([name for name in config.data.benchmarks if name not in stored])
        if self.validate:
            check_validation_problems(config)


def to_measure(config: RunConfig, after: After) -> bool:
    """Tell whether something is asked of a trained run that it does not have yet."""
    return any(_missing(RunFolder.of(config), config, after))


def _missing(run: RunFolder, config: RunConfig, after: After) -> tuple[bool, float]:
    """Tell whether benchmarks are missing, and the share of a benchmark that missing validations count as."""
    validations = validation_share(config) if after.validate and final_validation(run, config) is None else 0.0
    return after.evaluate and not set(config.data.benchmarks) <= set(run.measured()), validations


def measure_and_record(
    config: RunConfig,
    trained: Sequence[dict[str, Any]] | None,
    after: After,
    *,
    quiet: bool,
    fresh: CpuSeconds | None = None,
) -> Measured:
    """Measure a run (trained: the metrics of the steps this process added) or a base (None) as asked, add what the
    process cost to the run's record, and write the card of its model.

    fresh: nothing of the training is left in this process, nor of its launcher; what it had spent until then."""
    run = RunFolder.of_base(config) if trained is None else RunFolder.of(config)
    started, before, apart_s = fresh or CpuSeconds.now(), len(run.measured()), 0.0
    missing, validations = _missing(run, config, after)
    if (missing or validations) and not fresh and measures_apart(config, trained_here=bool(trained)):
        apart_s, quiet = in_own_process(_measure, config, trained is not None, after, quiet), True
    measured = _measure(config, trained is not None, after, quiet)
    if fresh:
        apart_s = CpuSeconds.now().children - started.children
    rows, new = trained or [], len(run.measured()) - before + validations
    if rows or new:
        cost = Cost(
            data=config.data.name,
            objective=str(config.objective["name"]) if trained is not None else "",
            steps=len(rows),
            benchmarks=new,
            cpu_s=time.process_time() - after.cpu_before + apart_s,
            training_s=sum(row["perf/cpu_s"] for row in rows),
            measuring_s=time.process_time() - started.own + apart_s,
            tokens=int(sum(row["perf/sampled_tokens"] for row in rows)),
            core_s=sum(row["perf/cpu_core_s"] for row in rows),
            work=work_of(config),
        )
        record(run, cost)
    if trained is not None:
        from tepo.jobs.model_card import write_card  # needs torch

        write_card(run, tuple(config.objective.get("kinds", {}).values()))
    return measured


def _measure(config: RunConfig, trained: bool, after: After, quiet: bool) -> Measured:
    """As asked; what is stored is read."""
    results: Sequence[Result] = []
    if after.evaluate:
        with benchmark_bar(len(config.data.benchmarks), quiet) as report:
            measured = partial(measure_run_with, after.engine) if after.engine else measure_run
            results = measured(config, config.data.benchmarks, trained=trained, report=report)
    return Measured(results, validate_run(config) if after.validate else None)
