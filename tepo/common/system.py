"""Operating systems that tepo does not work on, and what to do there. Imports nothing that they lack."""

import platform
import sys

_LINUX = {
    "win32": "Windows lacks fcntl, fork and Unix signals; in WSL2 it is a Linux machine",
    "darwin": "macOS lacks /proc, by which the grader keeps its budget; Apple's GPU is not used either",
}


def unsupported() -> str:
    """Why tepo does not train, sample or grade on this system; empty on Linux."""
    if sys.platform == "linux":
        return ""
    why = _LINUX.get(sys.platform, "nobody has tried it")
    return f"tepo needs Linux, and this is {platform.system()} {platform.machine()}: {why}. A Linux container will do"


def described() -> str:
    """The system as `tepo doctor` names it."""
    below = ", in WSL2: nobody has run the tests there" if "microsoft" in platform.release().lower() else ""
    return f"{platform.system()} {platform.machine()}{below}"
