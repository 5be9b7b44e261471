"""bitsandbytes, whose AdamW keeps both moments in 8 bits, a scale for each block of 256 (Dettmers et al. 2022,
arXiv 2110.02861). Tensors below 4,096 numbers keep theirs in 32."""

import logging
from typing import Any

import torch

from tepo.common.errors import UserError
from tepo.common.text import install_line

_WHERE = "engine.optimizer=adamw_8bit"
_OLDEST = (0, 50)  # the first that also updates on a CPU


def import_bitsandbytes() -> Any:
    """The package. Raises UserError when it is missing, too old or broken."""
    import importlib.metadata

    install = install_line("bitsandbytes")
    try:
        version = importlib.metadata.version("bitsandbytes")
    except importlib.metadata.PackageNotFoundError:
        fix = f"{install}, or engine.optimizer=adamw"
        raise UserError("bitsandbytes is not installed", where=_WHERE, fix=fix) from None
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise UserError(f"bitsandbytes {version} is too old", where=_WHERE, fix=install)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # else it asks for packages of which none is needed here
    try:
        import bitsandbytes
    except (ImportError, OSError, RuntimeError) as error:
        fix = "install a bitsandbytes that fits this torch, or engine.optimizer=adamw"
        raise UserError(f"bitsandbytes cannot be imported: {error}", where=_WHERE, fix=fix) from error
    return bitsandbytes


def check_8bit(device: str) -> None:
    """Raises UserError where an 8-bit update of one tensor does not work on the device."""
    weight = torch.nn.Parameter(torch.zeros(4096, device=device))
    weight.grad = torch.ones_like(weight)
    optimizer = import_bitsandbytes().optim.AdamW8bit([weight], lr=1.0, weight_decay=0.0)
    try:
        optimizer.step()
        moved = float(weight.detach().mean())
    except (RuntimeError, NotImplementedError, AttributeError) as error:  # without a library for the device
        moved, cause = 0.0, f": {error}".rstrip(": ")
    else:
        cause = ""
    if abs(moved + 1) > 1e-3:
        fix = "python -m bitsandbytes says what is missing; or engine.optimizer=adamw, with engine.offload=true"
        raise UserError(f"bitsandbytes does not update on {device}{cause}", where=_WHERE, fix=fix)
