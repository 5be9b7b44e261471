"""`metrics.jsonl` of a run and its mirror at wandb."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tepo.common.errors import UserError
from tepo.common.text import install_line
from tepo.config.compose import to_dict
from tepo.config.run_config import RunConfig
from tepo.store.run_folder import RunFolder

Report = Callable[[int, dict[str, Any]], None]

# What differs between two equal runs; everything else is bit-identical.
VOLATILE = (
    *("timing_s/", "timing_per_token_ms/", "perf/gpu", "perf/cpu", "perf/throughput", "perf/mfu/", "perf/max_memory"),
    "perf/left_over",
)


class MetricsLog:
    """`metrics.jsonl`, and wandb as its mirror but for lists, which hold a figure a problem;
    steps are our own axis there, so a resumed run's points are never dropped."""

    def __init__(self, config: RunConfig, folder: RunFolder, report: Report):
        self.folder, self.report = folder, report
        self.wandb = _start_wandb(config, folder) if config.wandb.mode != "disabled" else None

    def resume(self, step: int) -> None:
        """Drop what came after the step, the lines and any checkpoint that was passed over, and report the other lines
        again."""
        self.folder.forget(step)
        for row in self.folder.metrics():
            self.report(row["training/global_step"], row)

    def write(self, row: dict[str, Any]) -> None:
        """One step."""
        self.folder.append_metrics(row)
        if self.wandb is not None:
            self.wandb.log({name: value for name, value in row.items() if not isinstance(value, list)})

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self.wandb is not None:
            self.wandb.finish(exit_code=0 if kind is None else 1)


def _start_wandb(config: RunConfig, folder: RunFolder) -> Any:
    try:
        import wandb
    except ImportError:
        fix = f"{install_line('wandb')}, or wandb.mode=disabled"
        raise UserError("wandb is not installed", where=f"wandb.mode={config.wandb.mode}", fix=fix) from None
    for file in (Path(".wandb", "settings"), Path("wandb", "settings")):
        if config.wandb.mode == "online" and file.is_file():
            what = "wandb obeys this file of the current folder, which says where metrics and your key are sent"
            fix = "what is yours in it belongs into ~/.config/wandb/settings; move it away, or start in another folder"
            raise UserError(what, where=str(file.absolute()), fix=fix)
    name = folder.path.name
    token = os.environ.pop("SLURM_JWT", None)  # wandb's service writes every SLURM_ variable that it sees to its log
    try:
        run = wandb.init(
            project=config.wandb.project,
            group=config.wandb.group,
            id=name,
            name=f"{config.objective.get('name', '?')}-{config.seed}-{name}",
            resume="allow",
            mode=config.wandb.mode,  # type: ignore[arg-type]
            dir=str(folder.path),
            config=to_dict(config),
            settings=wandb.Settings(silent=True),
        )
    finally:
        if token is not None:
            os.environ["SLURM_JWT"] = token
    run.define_metric("training/global_step")
    run.define_metric("*", step_metric="training/global_step")
    return run
