"""Timings, running means, and the wandb mirror of `metrics.jsonl`."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tepo.config.schema import WandbConfig
from tepo.errors import UserError

VOLATILE = ("timing_s/", "perf/cpu", "perf/throughput")  # differ between two equal runs; everything else is bit-identical


class Stopwatch:
    """Wall seconds by section under verl's names `timing_s/*`, and the CPU seconds of the whole step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.started, self.cpu_started = time.perf_counter(), time.process_time()

    @contextlib.contextmanager
    def __call__(self, section: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[section] = self.seconds.get(section, 0.0) + time.perf_counter() - begin

    def metrics(self) -> dict[str, float]:
        step = time.perf_counter() - self.started
        return {f"timing_s/{name}": value for name, value in self.seconds.items()} | {"timing_s/step": step, "perf/cpu_s": time.process_time() - self.cpu_started}


class WandbMirror:
    """Sends metric rows to wandb; steps are our own axis, so a resumed run's points are never dropped."""

    def __init__(self, config: WandbConfig, folder: Path, run: str, settings: Mapping[str, Any]):
        self.run = None
        if config.mode == "disabled":
            return
        try:
            import wandb
        except ImportError:
            raise UserError("wandb is not installed", where=f"wandb.mode={config.mode}", fix="pip install 'tepo[wandb]', or wandb.mode=disabled") from None
        self.run = wandb.init(
            project=config.project, group=config.group, id=run, name=run, resume="allow", mode=config.mode, dir=str(folder), config=dict(settings), settings=wandb.Settings(silent=True)
        )
        self.run.define_metric("training/global_step")
        self.run.define_metric("*", step_metric="training/global_step")

    def log(self, row: Mapping[str, Any]) -> None:
        if self.run is not None:
            self.run.log(dict(row))

    def close(self, failed: bool) -> None:
        if self.run is not None:
            self.run.finish(exit_code=1 if failed else 0)
