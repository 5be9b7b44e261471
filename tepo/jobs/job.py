"""One run from its configuration: train it and draw the curves, measure it as asked."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tepo.common import signals
from tepo.common.files import write_atomic
from tepo.config.run_config import RunConfig
from tepo.jobs.clean_process import in_child
from tepo.jobs.measure import Request, measure
from tepo.jobs.model_card import write_card
from tepo.jobs.open_sampler import SharedEngine
from tepo.jobs.validate import final_validation, validate_run, validation_share
from tepo.policy.model.allocator import free_unused
from tepo.problems.benchmarks import check_measurable
from tepo.reporting.progress import bar, benchmark_bar
from tepo.store.cost import Cost, work_of
from tepo.store.evaluation_result import Result
from tepo.store.run_folder import RunFolder
from tepo.training.distributed.process_group import rank, world_size
from tepo.training.loop import train
from tepo.training.metrics.trackers import track_scores
from tepo.training.preflight import check_benchmarks, check_validation_problems
from tepo.training.run import Run


@dataclass(frozen=True)
class Measured:
    """Results on benchmarks, and the share of right responses to validation problems where it was asked for."""

    results: Sequence[Result]
    validation: float | None


@dataclass(frozen=True)
class RunJob:
    """A run, or its untrained base, and what is asked of it."""

    run: Run
    base: bool = False
    evaluate: bool = False  # on the benchmarks of its data
    validate: bool = False  # on validation problems
    quiet: bool = False
    cpu_before: float = 0.0  # CPU seconds of this process that are not the run's
    engine: SharedEngine | None = None  # that measures it, and others before and after it

    @cached_property
    def folder(self) -> RunFolder:
        """The folder of the run, or that of its base."""
        return RunFolder.of_base(self.config) if self.base else self.run.folder

    @property
    def config(self) -> RunConfig:
        return self.run.config

    def check(self) -> None:
        """Raises UserError for what cannot be done: now, and not after an hour of training."""
        if self.evaluate:
            check_measurable(self.config.data)
            stored = self.folder.measured()
            check_benchmarks([name for name in self.config.data.benchmarks if name not in stored])
        if self.validate:
            check_validation_problems(self.config)

    def train(self) -> list[dict[str, Any]] | None:
        """Train and draw the curves. Returns the metrics of the steps that this process added, None on ranks other than
        the first. A finished run is not trained again. Raises UserError for what cannot be measured, before it."""
        self.check()
        before = set(map(repr, self.folder.metrics()))
        name = f"{self.config.objective['name']} seed {self.config.seed}"
        with bar(name, self.config.train.steps, self.quiet or self.folder.finished()) as advance:

            def show(step: int, row: dict[str, Any]) -> None:
                failed = f"  reward failed {failures:.0f}" if (failures := row.get("reward/failed")) else ""
                advance(step, f"reward {row['critic/score/mean']:.3f}  grad {row['actor/grad_norm']:.2f}{failed}")

            train(self.run, show)
        if rank() > 0:
            return None
        signals.end_if_asked()  # during the last step
        _draw(self.folder, self.config)
        return [
            row for row in self.folder.metrics() if repr(row) not in before
        ]  # also of steps that were trained again

    def measures_apart(self, trained_here: bool) -> bool:
        """Tell whether something is missing that must be measured in another process than this one, which trained it
        or not."""
        sampler = self.run.sampler
        apart = world_size() > 1 or (trained_here and not sampler.shares_weights and not sampler.remote)
        return apart and any(self.missing())

    def missing(self) -> tuple[bool, float]:
        """Tell whether benchmarks that are asked for are missing, and what missing validations count, as a number of
        benchmarks."""
        lacks = self.validate and final_validation(self.folder, self.config) is None
        benchmarks = self.evaluate and not set(self.config.data.benchmarks) <= set(self.folder.measured())
        return benchmarks, validation_share(self.config) if lacks else 0.0

    def measure(self, rows: Sequence[dict[str, Any]] = ()) -> Measured:
        """Measure as asked, add what the process cost to the run's record, and write the card of its model; stored
        results are read. rows: of the steps that this process added."""
        start, stored_names, (_, validations), job = os.times(), self.folder.measured(), self.missing(), self
        if self.measures_apart(trained_here=bool(rows)):
            free_unused()
            in_child(self.results)
            job = replace(self, quiet=True)  # all is there
        measured = job.results()
        if not self.base:
            new_results = [result for result in measured.results if result.benchmark not in stored_names]
            track_scores(self.config, self.folder, new_results)
        new = len(self.folder.measured()) - len(stored_names) + validations
        if rows or new:
            measuring = sum(os.times()[:4]) - sum(start[:4])  # of this process, and of those that it started
            cost = Cost(
                data=self.config.data.name,
                objective="" if self.base else str(self.config.objective["name"]),
                steps=len(rows),
                benchmarks=new,
                cpu_s=start.user + start.system - self.cpu_before + measuring,
                training_s=sum(row["perf/cpu_s"] for row in rows),
                measuring_s=measuring,
                tokens=int(sum(row["perf/sampled_tokens"] for row in rows)),
                core_s=sum(row["perf/cpu_core_s"] for row in rows),
                work=work_of(self.config),
            )
            self.folder.add_cost(cost)
        if not self.base:
            write_card(self.folder, tuple(self.config.objective.get("functions", {}).values()))
        return measured

    def results(self) -> Measured:
        """Measure as asked, in this process."""
        results: Sequence[Result] = []
        if self.evaluate:
            names, request = self.config.data.benchmarks, Request.of(self.run, trained=not self.base)
            with benchmark_bar(len(names), self.quiet) as report:
                results = measure(request, names, report, self.engine)
        return Measured(results, validate_run(self.run) if self.validate else None)


def _draw(run: RunFolder, config: RunConfig) -> None:
    """Training curves of the run as a file in its folder; none where training ended with the first step, and on a
    machine that trains alone, without the packages of tables and charts."""
    try:
        import vl_convert  # noqa: F401 it draws

        from tepo.reporting.charts.curves import run_curves
        from tepo.reporting.charts.style import svg
    except ModuleNotFoundError:
        return
    if rows := run.metrics():
        name, ended = config.objective["name"], run.ending() is not None
        write_atomic(run.figures / "training.svg", svg(run_curves(rows, name, config.seed, run.path.name, ended=ended)))
