"""The machine of a measurement."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

_VECTOR_UNITS = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX", "asimd": "NEON"}  # by flag, the widest first
_CPUINFO = Path("/proc/cpuinfo")


def cpu_kind(cpuinfo: str) -> str:
    """Model and widest vector unit of the first CPU in the text of /proc/cpuinfo, as "AMD EPYC, AVX-512"."""
    lines = (line.partition(":") for line in reversed(cpuinfo.splitlines()))
    values = {key.strip().lower(): value.strip() for key, _, value in lines}
    flags = values.get("flags", values.get("features", "")).split()
    units = [unit for flag, unit in _VECTOR_UNITS.items() if flag in flags]
    return ", ".join([values.get("model name") or platform.processor() or platform.machine(), *units[:1]])


def machine() -> dict[str, str]:
    """Machine and versions that a result comes from. `cpu` is the kind of CPU, under which results are stored."""
    return {
        "cpu": cpu_kind(_CPUINFO.read_text() if _CPUINFO.exists() else ""),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers")},
    }
