"""A run by its folder, its id, or the beginning of its id."""

import difflib
from pathlib import Path

from tepo.errors import UserError
from tepo.training.run_folder import RunFolder


def find_run(name: str, store: Path) -> RunFolder | None:
    """The run that a name means: a run folder, or a run of the store by its id or a beginning that no other shares.

    None where nothing is called that. Raises UserError where several runs begin so.
    """
    for folder in (Path(name), store / name):
        if (folder / "manifest.json").is_file() and (folder / "config.json").is_file():
            return RunFolder(folder)
    found = [path.name for path in runs(store) if name and path.name.startswith(name)]
    if len(found) > 1:
        shown = ", ".join(found[:8]) + (" …" if len(found) > 8 else "")
        what = f"{len(found)} runs begin with {name!r}: {shown}"
        raise UserError(what, where=f"--store {store}", fix="give more of the id")
    return RunFolder(store / found[0]) if found else None


def nearest_run(name: str, store: Path) -> str | None:
    """The id of the run whose name is most like this one."""
    return next(iter(difflib.get_close_matches(name, [path.name for path in runs(store)], n=1, cutoff=0.5)), None)


def runs(store: Path) -> list[Path]:
    """Folders of the runs in a store, by name."""
    return sorted(path.parent for path in store.glob("*/manifest.json") if (path.parent / "config.json").is_file())
