"""The lock of a run: at any time one process trains it, and one measures it.

Who calls these has looked whether links lead out of the folder: `tepo.store.run_folder.RunFolder.lock`."""

from pathlib import Path
from typing import IO, Literal

from tepo.common.errors import BUSY, UserError
from tepo.common.files import TEMPORARY, remove_leftovers, take_lock

Purpose = Literal["train", "measure"]
LEFT: dict[Purpose, tuple[str, ...]] = {  # what killed processes that held the lock leave behind
    "train": ("checkpoints/.step_*", *(place + TEMPORARY for place in ("", "tokens/", "figures/", "checkpoints/*/"))),
    "measure": tuple(place + TEMPORARY for place in ("", "eval/*/", "eval/*/parts/")),
}


def lock_run(folder: Path, purpose: Purpose) -> IO[str]:
    """An exclusive lock for training, or for measuring and regrading, held until the returned file is closed or its
    process dies. What killed processes left of that work is removed. Raises UserError with exit code BUSY when another
    process has it."""
    handle = take_lock(_file(folder, purpose))
    if handle is None:
        what, fix = f"another process has this run ({purpose})", "wait for it; its result will be used"
        raise UserError(what, where=str(folder), fix=fix, exit_code=BUSY)
    remove_leftovers(folder, *LEFT[purpose])
    return handle


def is_locked(folder: Path) -> bool:
    """Tell whether another process trains or measures the run just now."""
    for purpose in LEFT if folder.is_dir() else ():
        handle = take_lock(_file(folder, purpose))
        if handle is None:
            return True
        handle.close()
    return False


def _file(folder: Path, purpose: Purpose) -> Path:
    return folder / f".{purpose}.lock"
