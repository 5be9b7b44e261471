"""The runs of a store that are under way, read from manifests, configurations and metrics alone."""

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tepo.common.errors import UserError
from tepo.common.files import parse_json
from tepo.store.find_run import runs
from tepo.store.run_folder import outcome_of
from tepo.store.run_id import is_configuration

REWARD, ENTROPY, LENGTH = "critic/score/mean", "actor/entropy", "response_length/mean"
SECONDS = "timing_s/step"
SILENCE, CLOSED = "silent", "not opened"
RECENT = 600.0  # seconds for which a run that has ended is still shown
SILENT = 900.0  # seconds without a new step after which a run that says it runs is silent: its process may be dead


@dataclass(frozen=True)
class LiveRun:
    """One run. status: in words. step, steps: done, and in all. reward, entropy, length (tokens of a response): of the
    last step that has them; NaN where none has. left: seconds to the end by its recent steps, None where it has none.
    moved: when it last wrote something, in seconds since 1970."""

    id: str
    status: str
    objective: str = ""
    model: str = ""
    seed: int = 0
    step: int = 0
    steps: int = 0
    reward: float = math.nan
    entropy: float = math.nan
    length: float = math.nan
    left: float | None = None
    moved: float = 0.0


def live_runs(store: Path) -> list[LiveRun]:
    """Runs that are being trained, and those that ended in the last `RECENT` seconds, the latest change first; then
    those that are not opened, because links lead out of them.

    A run that another process creates or rewrites meanwhile is left out, and there the next time."""
    now, summaries = time.time(), []
    for run in runs(store):
        try:
            run.opened  # noqa: B018
        except UserError as error:
            summaries.append(LiveRun(run.path.name, f"{CLOSED}: {error.what}"))
            continue
        try:
            manifest = run.manifest()
            files = (run.metrics_file, run.manifest_file)
            moved = max((os.path.getmtime(file) for file in files if file.exists()), default=0.0)
            running = manifest.get("status") == "running"
            if not manifest or (not running and now - moved > RECENT):
                continue
            config, rows = parse_json(run.config_file.read_bytes())["full"], run.metrics()
            if not is_configuration(config):
                continue
        except (UserError, OSError, ValueError, KeyError, TypeError):
            continue
        silent = running and now - moved > SILENT
        steps, seconds = config["train"]["steps"], _values(rows[-10:], SECONDS)
        seconds_left = (steps - len(rows)) * sum(seconds) / len(seconds) if running and seconds and not silent else None
        status = f"{SILENCE} for {duration(now - moved)}" if silent else outcome_of(manifest)
        names = config["objective"]["name"], config["model"]["name"], config["seed"]
        reward, entropy, length = ((_values(rows, name) or [math.nan])[-1] for name in (REWARD, ENTROPY, LENGTH))
        done = len(rows)
        summaries.append(
            LiveRun(run.path.name, status, *names, done, steps, reward, entropy, length, seconds_left, moved)
        )
    return sorted(summaries, key=lambda live: (-live.moved, live.id))


def _values(rows: Sequence[dict[str, Any]], metric: str) -> list[float]:
    return [float(value) for row in rows if isinstance(value := row.get(metric), int | float) and value == value]


def duration(seconds: float) -> str:
    """Such as 45 s, 12 min, 3.5 h, 2.0 d."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} d"
