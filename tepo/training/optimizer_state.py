"""The optimiser's state on disk, the same for every engine, ZeRO stage and number of ranks.

Safetensors of full tensors by parameter name: `step.NAME`, `exp_avg.NAME`, `exp_avg_sq.NAME`, and `master.NAME`
(float32) where the model itself is in bfloat16. With 8-bit moments, which only the embedded engine has, the tensors
are those of bitsandbytes: `state1.NAME`, `absmax1.NAME` and so on. Several files of a few GB, so that no process holds
more than one of them, in a folder of their own, because vLLM takes every safetensors file beside a model for its
weights.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tepo.errors import UserError

_FILE_BYTES = 4 << 30
KEYS = ("exp_avg", "exp_avg_sq")  # of AdamW, beside `step`


def write(folder: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write named tensors into `optimizer/NNNNN.safetensors`, in files of at most 4 GiB or one tensor."""
    held: dict[str, Tensor] = {}
    number = 0
    (folder / "optimizer").mkdir()
    for name, value in tensors:
        if held and sum(tensor.nbytes for tensor in held.values()) + value.nbytes > _FILE_BYTES:
            save_file(held, folder / "optimizer" / f"{number:05d}.safetensors")
            held, number = {}, number + 1
        held[name] = value.detach().to("cpu", copy=True).contiguous()  # a copy: `step` is one tensor for all
    save_file(held, folder / "optimizer" / f"{number:05d}.safetensors")


def read(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """All named tensors, one at a time. Raises UserError when there are none."""
    files = sorted((folder / "optimizer").glob("*.safetensors"))
    if not files:
        raise UserError(
            "the checkpoint has no optimiser state",
            where=str(folder),
            fix="resume from another checkpoint, or start a new run from its weights (model.path=…)",
        )
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (not a mapping)
                yield name, tensors.get_tensor(name)
