"""Names of what can be run, and the runs of a store, on the screen."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from tepo.common import paths
from tepo.common.errors import UserError
from tepo.common.files import parse_json
from tepo.config.differences import settings_apart
from tepo.store.find_run import runs
from tepo.store.run_folder import RunFolder, outcome_of
from tepo.store.run_id import RECIPE
from tepo.store.run_identity import is_configuration
from tepo.studies.study import CLAIMS
from tepo_cli.screen import fixed, show

_SHOWN = 40
_NOT_WHOLE = "config.json is missing, cut off or of another version"


def show_names() -> None:
    """Print what can be run."""
    table = Table(fixed("what"), "names", title="what can be run", show_lines=True)
    table.add_row("tepo ablate", ", ".join(_named("experiments", "ablations", without=CLAIMS)))
    table.add_row("tepo eval", ", ".join(_named("evals")))
    for group in paths.GROUPS:
        table.add_row(f"{group}=", ", ".join(_named(group)))
    for kind in paths.PYTHON:
        if paths.names(kind):
            table.add_row(f"{kind}:", ", ".join(_named(kind)))
    show(table)


def _named(*kinds: str, without: str = "") -> list[str]:
    """Names that a command takes, one of a user's own with its folder."""
    found = {}
    for kind in kinds:
        shipped = paths.shipped(kind)
        for name, path in paths.files(kind).items():
            own = "" if path.parent == shipped else f" ({path.parent})"
            hides = own and (shipped / path.name).is_file()
            found[name] = name + (f"{own[:-1]}, in place of the shipped one)" if hides else own)
    return [found[name] for name in sorted(found) if name != without]


def show_runs(store: Path, every: bool) -> None:
    """The newest runs as a table, or all of them as plain lines (a rich table of thousands takes longer than reading
    them)."""
    there = runs(store)
    if not there:
        print(f"no runs in {store} yet: try `tepo train` or `tepo ablate panel-e`")
        return
    if every:
        for line in _lines(there):
            print(*filter(None, line))
        return
    names, sizes = map(fixed, ("run", "objective", "model", "data", "seed")), map(fixed, ("steps", "measured"))
    table = Table(*names, "status", *sizes, "set apart by")
    newest = sorted(there, key=lambda run: os.path.getmtime(run.path))[-_SHOWN:]
    for line in _lines(newest):
        table.add_row(*line)
    more = f": the newest {len(newest)} of {len(there)}; --all lists every one" if len(there) > len(newest) else ""
    print(f"runs in {store}{more}")
    show(table)


def _lines(listed: Sequence[RunFolder]) -> list[list[str]]:
    """A line for each run, with the settings that tell it from others of the same names; of a folder that was copied
    half, or that a version with other keys wrote, only that."""
    lines, configs = [], []
    for run in listed:
        try:
            config = parse_json(run.config_file.read_bytes())["full"]
            if not is_configuration(config):
                raise ValueError
            lines.append(_line(run, config))
        except (UserError, OSError, ValueError, KeyError, TypeError) as error:  # ValueError: not JSON
            reason = error.what if isinstance(error, UserError) else _NOT_WHOLE
            config = {}
            lines.append([run.path.name, *"––––", f"unreadable: {reason}", "–", "–"])
        configs.append(config)
    apart = settings_apart([tuple(line[1:4]) for line in lines], configs)
    return [[*line, settings] for line, settings in zip(lines, apart, strict=True)]


def _line(run: RunFolder, config: dict[str, Any]) -> list[str]:
    manifest, total = run.manifest(), config["train"]["steps"]
    status = outcome_of(manifest)
    if manifest and manifest.get("recipe") != RECIPE:
        status += ", by another recipe"
    elif manifest:
        try:
            run.check_config()
        except UserError as error:
            status += f", and not used: {error.what}"
    if manifest.get("status") == "finished":
        steps = manifest.get("steps", total)
    else:
        steps = run.metrics_file.read_bytes().count(b"\n") if run.metrics_file.exists() else 0
    names = [config[group]["name"] for group in ("objective", "model", "data")]
    return [run.path.name, *names, str(config["seed"]), status, f"{steps}/{total}", str(len(run.measured()))]
