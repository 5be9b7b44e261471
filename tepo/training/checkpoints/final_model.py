"""The weights that a run ended with."""

from pathlib import Path

from tepo.common.errors import UserError
from tepo.store.checkpoint_files import damage
from tepo.store.run_folder import RunFolder


def final_model(path: Path) -> Path:
    """The newest complete checkpoint of a run folder, of a finished run the last, or the folder itself when it is a
    model. Files are looked at by their sizes.

    Raises UserError for a run without one, a damaged one, or a folder that is neither.
    """
    if (path / "config.json").exists() and not (path / "checkpoints").exists() and any(path.glob("*.safetensors")):
        if (path / "progress.json").exists() and (reason := damage(path)):
            fix = "use an earlier step of the run, or train it again"
            raise UserError(f"the checkpoint is damaged: {reason}", where=str(path), fix=fix)
        return path
    run = RunFolder(path)
    newest = run.newest()
    if newest is not None and run.manifest():
        run.check_whole()
    if newest is not None:
        return newest
    fix = "give a folder with config.json and model.safetensors, a run folder, or a hub id; `tepo list` shows the runs"
    raise UserError("no model and no checkpoint there", where=str(path), fix=fix)
