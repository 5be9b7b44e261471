"""One checkpoint: a folder that `from_pretrained` loads, with what resuming needs beside the model."""

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tepo.files import parse_json, write_json

if TYPE_CHECKING:
    from torch import Tensor

ADAPTER = "adapter"  # the folder of LoRA's adapters, which are merged into the model beside it
OPTIMISER = "optimizer"
ROLLOUTS = "rollouts"  # that wait for their step
_FOR_RESUMING = (OPTIMISER, ROLLOUTS)  # what a finished run needs no more


@dataclass(frozen=True, slots=True)
class TensorFile:
    """A safetensors file of a checkpoint. name: its path in the folder. tensors: on any device, and live ones too, or
    `copied` into main memory."""

    name: str
    tensors: Mapping[str, "Tensor"]
    metadata: Mapping[str, str] = field(default_factory=lambda: {"format": "pt"})
    copied: bool = False

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def copy(self) -> "TensorFile":
        """With copies of the tensors in main memory, which training does not change."""
        if self.copied:
            return self
        copies = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in self.tensors.items()}
        return replace(self, tensors=copies, copied=True)

    def write(self, folder: Path) -> int:
        """Write the tensors, which are in main memory, through to the disk. Returns the size of the file."""
        from safetensors.torch import save_file  # takes torch, which the commands that only read the store do without

        path = folder / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(dict(self.tensors), path, dict(self.metadata))
        with path.open("rb+") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size


def write_files(folder: Path, files: Iterable[TensorFile]) -> None:
    """Write them one after another, each copied and freed again."""
    for file in files:
        file.copy().write(folder)


def complete(folder: Path) -> bool:
    """Whether a checkpoint holds every file that its `progress.json` lists, at full size."""
    try:
        files = _progress(folder)["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return all((folder / name).is_file() and (folder / name).stat().st_size == size for name, size in files.items())


def drop_resumption(folder: Path) -> None:
    """Delete what only resuming needs: the optimiser's state and waiting rollouts. The checkpoint stays complete at
    every moment."""
    progress = _progress(folder)
    kept = {name: size for name, size in progress["files"].items() if name.split("/")[0] not in _FOR_RESUMING}
    if kept != progress["files"]:
        write_json(folder / "progress.json", progress | {"files": kept})
    for name in _FOR_RESUMING:
        shutil.rmtree(folder / name, ignore_errors=True)


def _progress(folder: Path) -> dict[str, Any]:
    return parse_json((folder / "progress.json").read_bytes())
