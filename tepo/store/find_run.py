"""The runs of a store, one of them by its folder, its id, or the beginning of its id, and what all have cost."""

import os
from pathlib import Path

from tepo.common.errors import UserError, nearest
from tepo.store.cost import Cost
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import AGAIN

_PARTS = ("manifest.json", "config.json")


def check_place(store: Path) -> None:
    """Raise UserError for a store that is there and is no folder that can be read."""
    fix = "--store DIR names another folder"
    try:
        os.scandir(store).close()
    except FileNotFoundError:
        if store.is_symlink():
            raise UserError("the store is a link that leads nowhere", where=str(store), fix=fix) from None
    except NotADirectoryError:
        raise UserError("the store is not a folder", where=str(store), fix=fix) from None
    except OSError as error:
        raise UserError(f"the store cannot be read: {error.strerror}", where=str(store), fix=fix) from None


def find_run(name: str, store: Path) -> RunFolder | None:
    """The run that a name means: a run folder, or a run of the store by its id or a beginning that no other shares.
    None where nothing is called that. Raises UserError where several runs begin so."""
    for folder in (Path(name), store / name):
        if _complete(RunFolder(folder)):
            return RunFolder(folder)
    ids = [run_id for run_id in _ids(store) if name and run_id.startswith(name)]
    if len(ids) > 1:
        what = f"{len(ids)} runs begin with {name!r}: {', '.join(ids[:8])}{' …' if len(ids) > 8 else ''}"
        raise UserError(what, where=f"--store {store}", fix="give more of the id")
    return RunFolder(store / ids[0]) if ids else None


def nearest_run(name: str, store: Path) -> str | None:
    """The id of the run whose name is most like this one."""
    return next(iter(nearest(name, _ids(store))), None)


def no_run(name: str, store: Path) -> UserError:
    """The error for a name that no run has, or one that was copied half."""
    named = [Path(name), *(run.path for run in runs(store) if run.path.name.startswith(name))] if name else []
    for folder in filter(_begun, named):
        if missing := [part for part in _PARTS if not os.path.isfile(folder / part)]:
            return UserError(f"half a run: no {' and no '.join(missing)}", where=str(folder), fix=AGAIN)
    near = nearest_run(name, store)
    fix = f"{near} is the nearest" if near else "`tepo list` shows the runs"
    return UserError(f"no run {name!r}", where=f"--store {store}", fix=fix)


def runs(store: Path) -> list[RunFolder]:
    """The runs in a store, by name: also one that was copied half and lacks its configuration, its manifest or
    both, a folder that may not be read, and one that no command opens because links lead out of it."""
    if not store.is_dir():
        return []
    run_folders = []
    for run in (RunFolder(Path(entry.path)) for entry in os.scandir(store)):
        unreadable = run.path.is_dir() and not os.access(run.path, os.R_OK | os.X_OK)
        if unreadable or _begun(run.path):
            run_folders.append(run)
    return sorted(run_folders, key=lambda run: run.path.name)


def _begun(folder: Path) -> bool:
    """Tell whether a folder has a part of a run."""
    return any(os.path.lexists(folder / part) for part in (*_PARTS, "metrics.jsonl", "checkpoints"))


def _complete(run: RunFolder) -> bool:
    return all((run.path / part).is_file() for part in _PARTS)


def _ids(store: Path) -> list[str]:
    return [run.path.name for run in runs(store) if _complete(run)]


def costs(store: Path) -> list[Cost]:
    """Every recorded cost in a store, but of runs that links lead out of."""
    run_costs: list[Cost] = []
    for run in map(RunFolder, store.glob("*/")):
        try:
            run.opened  # noqa: B018
        except UserError:
            continue
        run_costs += run.costs()
    return run_costs
