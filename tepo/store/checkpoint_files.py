"""One checkpoint: a folder that `from_pretrained` loads, with what resuming needs beside the model.

Its `progress.json` lists the size and the SHA-256 of every other file, and has a digest of itself. They show damage: a
flipped bit, a cut file, an edited number. They hold nobody off who writes new ones.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tepo.common.files import content_hash, file_digest, parse_json, write_json

if TYPE_CHECKING:
    from torch import Tensor

ADAPTER = "adapter"  # the folder of LoRA's adapters, which are merged into the model beside it
OPTIMISER = "optimizer"
ROLLOUTS = "rollouts"  # that wait for their step
_FOR_RESUMING = (OPTIMISER, ROLLOUTS)  # what a finished run needs no more
_PROGRESS = "progress.json"
_OWN = "own_sha256"  # of all other keys of `progress.json`


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

    def waited_for(self) -> "TensorFile":
        """With the tensors in main memory, copied where they lie elsewhere: nothing changes them until they are
        written. Of those that are one and the same, as DeepSpeed's steps are, each is its own, as safetensors asks."""
        tensors, pointers = {}, set()
        for name, value in self.tensors.items():
            here = value.detach().to("cpu").contiguous()
            tensors[name] = here.clone() if here.data_ptr() in pointers else here
            pointers.add(here.data_ptr())
        return replace(self, tensors=tensors)

    def write(self, folder: Path) -> int:
        """Write the tensors, which are in main memory, through to the disk. Returns the size of the file."""
        from safetensors.torch import save_file  # takes torch, which the commands that only read the store do without

        path = folder / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(dict(self.tensors), path, dict(self.metadata))
        with path.open("rb+") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def digest(self, folder: Path) -> str:
        """SHA-256 (hex) of the file that `write` has made: of its header there and of the tensors in main memory, so
        that nothing large is read again, and a disk that keeps something else is found out."""
        import torch

        with (folder / self.name).open("rb") as file:
            length = file.read(8)
            header = file.read(int.from_bytes(length, "little"))
        digest = hashlib.sha256(length + header)
        places = {name: place for name, place in json.loads(header).items() if name != "__metadata__"}
        for name in sorted(places, key=lambda name: places[name]["data_offsets"]):  # lets other threads run meanwhile
            digest.update(self.tensors[name].flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()


def write_progress(folder: Path, progress: dict[str, Any]) -> None:
    """Write `progress.json`: what is kept beside the weights, `files` (name: bytes) and `sha256` (name: hex)."""
    rest = {key: value for key, value in progress.items() if key != _OWN}
    write_json(folder / _PROGRESS, rest | {_OWN: _own_digest(rest)})


def read_progress(folder: Path) -> dict[str, Any]:
    """The content that `write_progress` wrote."""
    return parse_json((folder / _PROGRESS).read_bytes())


def damage(folder: Path, *, contents: bool = False) -> str:
    """Describe the damage of a checkpoint: files that are missing or of another size than recorded, or numbers of
    `progress.json` that were changed; with `contents` also files of another SHA-256, for which all are read. Empty
    where nothing is."""
    try:
        progress = read_progress(folder)
        if progress[_OWN] != _own_digest(progress):
            return f"{_PROGRESS} was changed since it was written"
        for name, size in progress["files"].items():
            path = folder / name
            if not path.is_file():
                return f"half-written: {name} is missing"
            if path.stat().st_size != size:
                return f"half-written: {name} has {path.stat().st_size} bytes of {size}"
        digests = progress["sha256"] if contents else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"half-written: {_PROGRESS} is missing or damaged"
    with ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:
        disk_digests = zip(digests, pool.map(lambda name: _digest_on_disk(folder / name), digests), strict=True)
        return next(
            (f"{name} is not as it was written (SHA-256)" for name, digest in disk_digests if digest != digests[name]),
            "",
        )


def drop_resumption(folder: Path) -> None:
    """Delete what only resuming needs: the optimiser's state and waiting rollouts. The checkpoint stays complete at
    every moment."""
    progress = read_progress(folder)
    kept_entries = {
        key: {name: value for name, value in progress[key].items() if name.split("/")[0] not in _FOR_RESUMING}
        for key in ("files", "sha256")
    }
    if progress != progress | kept_entries:
        write_progress(folder, progress | kept_entries)
    for part in for_resuming(folder):
        shutil.rmtree(part, ignore_errors=True)


def for_resuming(folder: Path) -> list[Path]:
    """Files of a checkpoint that serve resuming alone."""
    return [folder / name for name in _FOR_RESUMING if (folder / name).exists()]


def _own_digest(progress: Mapping[str, Any]) -> str:
    return content_hash({key: value for key, value in progress.items() if key != _OWN}, 64)


def _digest_on_disk(path: Path) -> str:
    """Empty where the disk does not give the file back."""
    try:
        return file_digest(path)
    except OSError:
        return ""
