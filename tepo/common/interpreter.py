"""Starting Python: the one way for every process that begins with an interpreter.

Python puts the current folder, or that of a script, in front of its own library, so that a file there with the name of
a module is executed in its place. Our children and theirs leave it out. What PYTHONPATH names counts, but for an empty
entry, which would be the current folder.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_ROOT = str(_PACKAGE.parent)
_SAFE, _PATH = "PYTHONSAFEPATH", "PYTHONPATH"
_FOLDERS = (_PATH, "PATH", "LD_LIBRARY_PATH")  # variables in which an empty entry is the current folder
_LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_", "LOCAL_RANK", "GROUP_", "ROLE_", "TORCHELASTIC_", "TORCH_NCCL_")
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "TOKENIZERS_PARALLELISM": "false",
}
_ORIGIN = "import importlib.util as util; found = util.find_spec('tepo'); print(found and found.origin)"


def command(*words: str) -> list[str]:
    """Command line of a child; it goes with an `environment`. words: from `-m` or `-c` on."""
    return [sys.executable, "-P", *words]


def environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables of a child, made of those that are given. It finds this package wherever that lies."""
    variables = _kept(given)
    if not _found(variables.get(_PATH, "")):
        variables[_PATH] = os.pathsep.join(filter(None, (_ROOT, variables.get(_PATH))))
    return variables


def without_launcher(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables without those by which a launcher tells a rank who it is; how many there are on this machine stays."""
    return {name: value for name, value in given.items() if not name.startswith(_LAUNCHER)}


def _kept(variables: Mapping[str, str]) -> dict[str, str]:
    entries = {
        name: os.pathsep.join(filter(None, variables[name].split(os.pathsep))) for name in _FOLDERS if name in variables
    }
    return {**variables, **entries, _SAFE: "1"}


@cache
def _found(path: str) -> bool:
    """Tell whether a fresh interpreter with this PYTHONPATH finds this package, and not one that is installed beside
    it."""
    variables = {**_kept(os.environ), _PATH: path}
    output = subprocess.run(command("-c", _ORIGIN), capture_output=True, text=True, env=variables, check=False).stdout
    return output.strip() == str(_PACKAGE / "__init__.py")


def settle() -> tuple[list[tuple[int, str]], dict[str, str | None]]:
    """Make this process like such a child, for what libraries start from its path and its variables. Returns the
    entries of `sys.path` that it drops, with their places, and the variables as they were."""
    named = {_folder(entry) for entry in os.environ.get(_PATH, "").split(os.pathsep) if entry}
    script = getattr(sys.modules["__main__"], "__file__", None) or ""
    implied = {_folder(""), _folder(os.path.dirname(script))} - named
    library = os.path.dirname(os.__file__)
    front = sys.path[: sys.path.index(library)] if library in sys.path else list(sys.path)
    dropped = [(place, entry) for place, entry in enumerate(front) if _folder(entry) in implied]
    before = {name: os.environ.get(name) for name in (*_FOLDERS, _SAFE)}
    for place, _ in reversed(dropped):
        del sys.path[place]
    if _ROOT not in sys.path:
        sys.path.append(_ROOT)
    os.environ |= _kept(os.environ)
    return dropped, before


class _Logger(logging.Logger):
    """One that lets other packages log errors alone, whatever level they give themselves when they are imported."""

    def isEnabledFor(self, level: int) -> bool:
        from_tepo = self.name.partition(".")[0] in ("tepo", "tepo_cli")
        return super().isEnabledFor(level) and (from_tepo or level >= logging.ERROR)


def quiet_others() -> None:
    """Keep warnings, lines of the log and progress bars of the packages that this process is to import off the screen
    of a command. Python's own options bring them back: `PYTHONWARNINGS=default tepo …`."""
    if sys.warnoptions:
        return
    logging.setLoggerClass(_Logger)
    logging.captureWarnings(True)
    for name, logger in logging.root.manager.loggerDict.items():  # which a server of processes has imported before
        if isinstance(logger, logging.Logger) and name.partition(".")[0] not in ("tepo", "tepo_cli"):
            logger.setLevel(max(logger.level, logging.ERROR))
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def _folder(entry: str) -> str:
    try:
        return os.path.realpath(entry)
    except OSError:  # the current folder has been removed
        return entry


@contextmanager
def settled() -> Iterator[None]:
    """A block in which this process is as after `settle`: somebody else's, a notebook's, gets its own back."""
    dropped, before = settle()
    try:
        yield
    finally:
        for place, entry in dropped:
            sys.path.insert(place, entry)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
