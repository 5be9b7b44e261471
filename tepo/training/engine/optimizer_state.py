"""The optimiser's state on disk, the same for every engine, ZeRO stage and number of ranks.

Safetensors by parameter name: `step.NAME`, `exp_avg.NAME`, `exp_avg_sq.NAME`, and `master.NAME` (float32) where the
model itself is in bfloat16. With 8-bit moments, which only the embedded engine has, the tensors are those of
bitsandbytes: `state1.NAME`, `absmax1.NAME` and so on. Every rank writes the numbers that it updates: full tensors, or
runs of the flattened tensor, whose beginnings are in the file's metadata. A reader on any number of ranks takes the
runs that overlap with its own. Several files of a few GB, so that no process holds more than one of them, in a folder
of their own, because vLLM takes every safetensors file beside a model for its weights.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from tepo.common.errors import UserError
from tepo.config.run_config import TrainConfig
from tepo.store.checkpoint_files import OPTIMISER, TensorFile

_FILE_BYTES = 4 << 30
KEYS = ("exp_avg", "exp_avg_sq")  # of AdamW, beside `step`


def adamw_options(train: TrainConfig) -> dict[str, Any]:
    """Options of AdamW, of any engine's."""
    betas = (0.9, train.adam_beta2)
    return {"lr": train.learning_rate, "betas": betas, "eps": 1e-8, "weight_decay": train.weight_decay}


@dataclass(frozen=True, slots=True)
class Piece:
    """Numbers of one kind of state of one parameter. start: None for the full tensor, else where `value` [n] begins in
    the flattened one."""

    kind: str
    name: str
    value: Tensor
    start: int | None = None

    def overlap(self, start: int, size: int) -> tuple[slice, Tensor]:
        """Return which of the numbers [start, start + size) of the flattened tensor this piece has, counted from
        `start`, and their values; both may be empty."""
        begins = self.start or 0
        low, high = max(start, begins), min(start + size, begins + self.value.numel())
        high = max(low, high)
        return slice(low - start, high - start), self.value.flatten()[low - begins : high - begins]


def files(pieces: Iterable[Piece], rank: int = 0) -> Iterator[TensorFile]:
    """The pieces of a rank as files of at most 4 GiB, or of one piece."""
    file_pieces: list[Piece] = []
    number = 0
    for piece in pieces:
        if file_pieces and sum(other.value.nbytes for other in file_pieces) + piece.value.nbytes > _FILE_BYTES:
            yield _file(file_pieces, rank, number)
            file_pieces, number = [], number + 1
        file_pieces.append(piece)
    yield _file(file_pieces, rank, number)


def _file(pieces: list[Piece], rank: int, number: int) -> TensorFile:
    starts = {f"{piece.kind}.{piece.name}": piece.start for piece in pieces if piece.start is not None}
    return TensorFile(
        f"{OPTIMISER}/{rank:05d}-{number:05d}.safetensors",
        {f"{piece.kind}.{piece.name}": piece.value for piece in pieces},
        {"format": "pt", "starts": json.dumps(starts)},
    )


def read(folder: Path, sizes: Mapping[str, int]) -> Iterator[Piece]:
    """All pieces, one at a time; values are read from the disk where they are used. sizes: numbers of each weight that
    trains on a master. Raises UserError when there are no pieces, and for a master that is not all there."""
    paths = sorted((folder / OPTIMISER).glob("*.safetensors"))
    if not paths:
        fix = "resume from another checkpoint, or start a new run from its weights (model.path=…)"
        raise UserError("the checkpoint has no optimiser state", where=str(folder), fix=fix)
    masters: Counter[str] = Counter()
    for file in paths:
        with safe_open(file, framework="pt") as tensors:
            starts = json.loads((tensors.metadata() or {}).get("starts", "{}"))
            for key in tensors.keys():  # noqa: SIM118  (not a mapping)
                kind, _, name = key.partition(".")
                piece = Piece(kind, name, tensors.get_tensor(key), starts.get(key))
                masters[name] += piece.value.numel() if kind == "master" else 0
                yield piece
    if lacking := [name for name, size in sizes.items() if masters[name] != size]:
        what = f"the optimiser state has not all of the float32 weights of {lacking[0]}"
        raise UserError(what, where=str(folder), fix="resume from another checkpoint")
