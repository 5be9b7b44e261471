"""The weights that a run ended with."""

from pathlib import Path

from tepo.errors import UserError
from tepo.training.checkpoint import complete
from tepo.training.run_folder import RunFolder


def final_model(path: Path) -> Path:
    """The newest complete checkpoint of a run folder, or the folder itself when it is a model.

    Raises UserError for a run without one, or a folder that is neither.
    """
    if (path / "config.json").exists() and not (path / "checkpoints").exists() and any(path.glob("*.safetensors")):
        if (path / "progress.json").exists() and not complete(path):
            raise UserError(
                "the checkpoint is half-written: files are missing or shorter than recorded",
                where=str(path),
                fix="use an earlier step of the run, or train it again",
            )
        return path
    folder = RunFolder(path)
    steps = folder.checkpoints()
    if steps:
        return folder.checkpoint(steps[-1])
    damaged = sorted((path / "checkpoints").glob("step_*"))
    if damaged:
        raise UserError(
            "every checkpoint of the run is half-written", where=str(damaged[-1]), fix="train the run again"
        )
    raise UserError(
        "no model and no checkpoint there",
        where=str(path),
        fix=(
            "give a folder with config.json and model.safetensors, a run folder, or a hub id; "
            "`tepo list` shows the runs"
        ),
    )
