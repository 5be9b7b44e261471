"""Names of what can be run, the runs of a store, and those that train, on the screen."""

import ast
import math
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.live import Live
from rich.text import Text

from tepo.common import paths
from tepo.common.errors import UserError
from tepo.common.files import parse_json
from tepo.config.differences import settings_apart
from tepo.reporting.progress import Screen
from tepo.store.find_run import runs
from tepo.store.live_runs import CLOSED, RECENT, SILENCE, duration, live_runs
from tepo.store.run_folder import RunFolder, outcome_of
from tepo.store.run_id import RECIPE, is_configuration
from tepo.studies.study import CLAIMS
from tepo_cli.screen import screen_width, show

_SHOWN = 40
_SAID = re.compile(r"^(?:title|about):(?: *>-?\n)?((?:.*)(?:\n +.*)*)", re.MULTILINE)
_NOT_WHOLE = "config.json is missing, cut off or of another version"


def show_names() -> None:
    """Print what can be run, a line each with what its file says of it."""
    kinds = {"tepo ablate": paths.STUDIES, "tepo eval": ("evals",), "tepo eval NAME:": (paths.PROTOCOLS,)}
    kinds |= {f"{group}=": (group,) for group in paths.GROUPS} | {f"{kind}:": (kind,) for kind in paths.PYTHON}
    for heading, of in kinds.items():
        files = {name: path for kind in of for name, path in paths.files(kind).items() if name != CLAIMS}
        if not files:
            continue
        print(f"{heading}{'NAME' if heading[-1] == '=' else ' NAME'}" if heading[-1] != ":" else heading)
        width, own_names = max(map(len, files)) + 3, dict[Path, list[str]]()
        for name, path in sorted(files.items()):
            shipped = [paths.shipped(kind) for kind in of]
            mark = "" if path.parent in shipped else "*"
            if mark:
                hides = any((folder / path.name).is_file() for folder in shipped)
                own_names.setdefault(path.parent, []).append(f"{name}, in place of the shipped one" if hides else name)
            print(_line_of(f"  {f'{name}{mark}'.ljust(width)}", description(path)))
        for folder, names in own_names.items():
            print(f"  * in {folder}: {'; '.join(names)}")
        print()


def _line_of(head: str, text: str) -> str:
    """A name and its description, which is cut between words where the line ends."""
    width = max(screen_width() - len(head), 20)
    return head + "".join(wrap(text, width, max_lines=1, placeholder=" …"))


def description(path: Path) -> str:
    """The first sentence of what a file says of itself: `title:` or `about:`, a docstring, or its first comment where
    these say no more than the name. Of a model also where its weights come from."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".py":
        with suppress(SyntaxError, ValueError):
            return _sentence(ast.get_docstring(ast.parse(text)) or "")
        return ""
    lines = takewhile(lambda line: line.startswith("#"), text.splitlines())
    comment = _sentence("\n".join(line.lstrip("# ") for line in lines if not line.startswith("# @package")))
    match = _SAID.search(text)
    title = _sentence(match[1].strip().strip("\"'")) if match else ""
    if comment and re.sub(r"\W", "", title).casefold() in ("", path.stem.replace("_", "")):
        title = comment
    source = re.search(r"^path: *([\w./-]+)$", text, re.MULTILINE)
    return ": ".join(filter(None, (source[1] if source else "", title)))


def _sentence(text: str) -> str:
    return re.split(r"\. (?=[A-Z])", " ".join(text.split("\n\n")[0].split()))[0].rstrip(".")


def show_runs(store: Path, every: bool) -> None:
    """The newest runs as a table, or all of them as plain lines (a rich table of thousands takes longer than reading
    them)."""
    all_runs = runs(store)
    if not all_runs:
        print(f"no runs in {store} yet: try `tepo train` or `tepo ablate panel-e`")
        return
    if every:
        for line in _lines(all_runs):
            print(*filter(None, line))
        return
    newest = sorted(all_runs, key=lambda run: os.path.getmtime(run.path))[-_SHOWN:]
    of = f": the newest {len(newest)} of {len(all_runs)}; --all lists every one" * (len(all_runs) > len(newest))
    print(f"runs in {store}{of}")
    heads = ("run", "objective", "model", "data", "seed", "status", "steps", "measured", "set apart by")
    show(heads, _lines(newest), wrapped=("status", "set apart by"))


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
    if best := run.best():
        status += f", weights of step {best.step}"
    if manifest.get("status") == "finished":
        steps = manifest.get("steps", total)
    else:
        steps = run.metrics_file.read_bytes().count(b"\n") if run.metrics_file.exists() else 0
    names = [config[group]["name"] for group in ("objective", "model", "data")]
    return [run.path.name, *names, str(config["seed"]), status, f"{steps}/{total}", str(len(run.measured()))]


def show_live_runs(store: Path) -> None:
    """The runs that train and those that have just ended, again every second until Ctrl-C; once in a pipe."""
    if not store.is_dir():
        raise UserError("no such folder", where=f"--store {store}", fix="the store of the study, as given to it")
    screen = Screen()
    if not screen.is_terminal:
        print("\n".join(_live(store)))
        return
    with suppress(KeyboardInterrupt), Live(console=screen, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            live.update(Text("\n".join(_live(store))), refresh=True)
            time.sleep(1)


def _live(store: Path) -> list[str]:
    """How many there are, then a line a run."""
    listed = live_runs(store)
    running = sum(run.status == "running" for run in listed)
    others = {state: sum(run.status.startswith(state) for run in listed) for state in (SILENCE, CLOSED)}
    ended = f"{len(listed) - running - sum(others.values())} ended in the last {duration(RECENT)}"
    lines = [", ".join([f"{store}: {running} running", ended, *(f"{n} {state}" for state, n in others.items() if n)])]
    for run in listed:
        metrics = {"reward": f"{run.reward:.1%}", "entropy": f"{run.entropy:.3f}", "length": f"{run.length:.0f}"}
        figures = [f"{name} {text}" for name, text in metrics.items() if not math.isnan(getattr(run, name))]
        time_left = [] if run.left is None else [duration(run.left)]
        lines.append(
            "  ".join(
                [run.id, run.objective, str(run.seed), f"{run.step}/{run.steps}", *figures, *time_left, run.status]
            )
        )
    return lines
