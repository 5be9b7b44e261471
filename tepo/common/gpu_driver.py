"""The driver of NVIDIA's GPUs. Where it is too old for torch's CUDA, or not ready, torch says at most in a warning that
there is no GPU, and what asks for one where there is one would run on the CPU for days."""

import contextlib
import os
import re
from pathlib import Path

from tepo.common.errors import UserError

_DEVICES, _VERSION = Path("/dev"), Path("/proc/driver/nvidia/version")
FIX = "update the driver or install a torch for its CUDA; CUDA_VISIBLE_DEVICES= (empty) takes the CPU all the same"


def unusable() -> str:
    """A sentence on a GPU of this machine that torch, built for CUDA, cannot use; empty where it can, where there is
    none that this process may open, and where CUDA_VISIBLE_DEVICES shows it none on purpose."""
    import torch

    if torch.version.cuda is None or os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1", "NoDevFiles"):
        return ""
    if torch.cuda.is_available() or not any(map(_opens, _DEVICES.glob("nvidia[0-9]*"))):
        return ""
    driver, reason = "unknown", "it does not answer"
    with contextlib.suppress(OSError):
        driver = (re.search(r"\d{3,}(\.\d+)+", _VERSION.read_text()) or [driver])[0]
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split(". ")[0].splitlines()[0]
    return f"torch {torch.__version__} for CUDA {torch.version.cuda} cannot use the GPU, driver {driver}: {reason}"


def check_driver() -> None:
    """Raises UserError for a GPU that torch cannot use, see `unusable`."""
    if reason := unusable():
        raise UserError(reason, where="the NVIDIA driver", fix=FIX)


def _opens(device: Path) -> bool:
    """A job of a scheduler sees the device of a GPU that is not its own, and may not open it."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True
