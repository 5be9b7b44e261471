"""Files of a checkpoint, written in this thread."""

from collections.abc import Iterable
from pathlib import Path

from tepo.store.checkpoint_files import TensorFile


def write_files(folder: Path, files: Iterable[TensorFile]) -> None:
    """Write them one after another, each copied and freed again."""
    for file in files:
        file.copy().write(folder)
