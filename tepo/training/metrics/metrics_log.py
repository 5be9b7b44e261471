"""`metrics.jsonl` of a run, and what shows it elsewhere."""

from collections.abc import Callable
from typing import Any

from tepo.config.run_config import RunConfig
from tepo.store.run_folder import RunFolder
from tepo.training.metrics.trackers import STEP, Trackers

Report = Callable[[int, dict[str, Any]], None]

# What differs between two equal runs; everything else is bit-identical.
VOLATILE = (
    *("timing_s/", "timing_per_token_ms/", "perf/gpu", "perf/cpu", "perf/throughput", "perf/mfu/", "perf/max_memory"),
    "perf/left_over",
)


class MetricsLog:
    """`metrics.jsonl`, with the trackers of the run from `resume` on."""

    def __init__(self, config: RunConfig, folder: RunFolder, report: Report):
        self.config, self.folder, self.report = config, folder, report
        self.trackers: Trackers | None = None

    def resume(self, step: int) -> None:
        """Drop what came after the step, the lines and any checkpoint that was passed over, and report the other lines
        again."""
        before = self.folder.metrics()
        self.folder.forget(step)
        rows = self.folder.metrics()
        self.trackers = Trackers(self.config, self.folder, rows, before[-1][STEP] if before else 0)
        for row in rows:
            self.report(row[STEP], row)

    def write(self, row: dict[str, Any]) -> None:
        """One step."""
        self.folder.append_metrics(row)
        if self.trackers:
            self.trackers.log(row)

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self.trackers:
            self.trackers.close(failed=kind is not None)
