"""Folders of the declarative files: the user's folders in front, then the ones that ship with the package.

`TEPO_PATH` (folders separated by the system's path separator) may hold all of KINDS but samplers and engines. A file
there wins over a shipped one of the same name.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tepo.common.errors import UserError, unknown_name

PACKAGE = Path(__file__).parents[1]
CONFIG = PACKAGE / "config"
GROUPS = ("objective", "model", "scale", "data", "sampler", "engine")  # of the configuration
_SHIPPED_ALONE = ("sampler", "engine")  # a backend is code of the package
PYTHON = ("functions", "rewards")
PROTOCOLS = "evals/protocols"
EXPERIMENTS, ABLATIONS = "experiments", "ablations"
PAPERS = f"{EXPERIMENTS}/papers"  # a folder a table: study.yaml, and the figures as printed
STUDIES = (EXPERIMENTS, ABLATIONS, PAPERS)
KINDS = (*STUDIES, "evals", PROTOCOLS, "records", *GROUPS, *PYTHON)
_WORDS = {
    "evals": "benchmark",
    "functions": "file of functions",
    "rewards": "file of a reward",
    EXPERIMENTS: "experiment",
    ABLATIONS: "ablation",
    PAPERS: "paper",
}

_P = ParamSpec("_P")
_T = TypeVar("_T")
_ANSWERS: ContextVar[dict[Any, Any] | None] = ContextVar("answers", default=None)


@contextmanager
def one_look() -> Iterator[None]:
    """Within it, what is `once_a_look` is looked up once: a plan composes thousands of configurations, of files as they
    are at one moment. One within another is a part of it."""
    if _ANSWERS.get() is not None:
        yield
        return
    token = _ANSWERS.set({})
    try:
        yield
    finally:
        _ANSWERS.reset(token)


def once_a_look(look: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function that reads files and whose result nobody changes: within `one_look` it reads them once."""

    @wraps(look)
    def answer(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        answers = _ANSWERS.get()
        if answers is None:
            return look(*args, **kwargs)
        key = (look, args, *kwargs.items())
        if key not in answers:
            answers[key] = look(*args, **kwargs)
        value: _T = answers[key]
        return value

    return answer


def cache() -> Path:
    """The folder of what was fetched or made on this machine once: models, problems."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tepo"


def folders(kind: str) -> list[Path]:
    """Folders that hold files of a kind (one of KINDS), first match wins. Raises UserError for a folder of TEPO_PATH
    that is not there."""
    parts = [Path(part) for part in os.environ.get("TEPO_PATH", "").split(os.pathsep) if part]
    for part in parts:
        if not part.is_dir():
            fix = f"make {part}, or take it out of TEPO_PATH"
            raise UserError("no such folder", where=f"TEPO_PATH={os.environ['TEPO_PATH']}", fix=fix)
    user_folders = [] if kind in _SHIPPED_ALONE else [part / kind for part in parts]
    return [folder for folder in (*user_folders, shipped(kind)) if folder.is_dir()]


def shipped(kind: str) -> Path:
    """The folder that came with the package: in a wheel inside it, in a checkout at the top."""
    if kind in GROUPS:
        return CONFIG / kind
    inside = PACKAGE / "_data" / kind
    return inside if inside.is_dir() else PACKAGE.parent / kind


@once_a_look
def files(kind: str) -> Mapping[str, Path]:
    """Name (file stem; of PAPERS the folder) -> the file that it stands for; one whose name begins with _ has no name
    to ask for."""
    suffix = ".py" if kind in PYTHON else ".yaml"
    by_name: dict[str, Path] = {}
    for folder in reversed(folders(kind)):
        if kind == PAPERS:
            by_name |= {path.parent.name: path for path in folder.glob("[!_.]*/study.yaml")}
            continue
        with os.scandir(folder) as entries:
            by_name |= _named(
                folder,
                suffix,
                tuple(
                    entry.name
                    for entry in entries
                    if entry.name.endswith(suffix) and entry.name[0] not in "_." and entry.is_file()
                ),
            )
    return dict(sorted(by_name.items()))


@lru_cache(maxsize=512)
def _named(folder: Path, suffix: str, names: tuple[str, ...]) -> dict[str, Path]:
    """Name -> path. Kept: making paths takes longer than looking which files there are."""
    return {name.removesuffix(suffix): folder / name for name in names}


def names(kind: str) -> list[str]:
    """Names of all files of a kind."""
    return list(files(kind))


def is_shipped(name: str, *kinds: str) -> bool:
    """Tell whether a name stands for a file that came with the package, in one of these kinds."""
    places = ((kind, files(kind).get(name.replace("-", "_"))) for kind in kinds)
    return any(path is not None and path.is_relative_to(shipped(kind)) for kind, path in places)


def find(kind: str, name: str) -> Path:
    """The file of that name (`-` and `_` are the same). Raises UserError with the nearest valid name."""
    by_name = files(kind)
    path = by_name.get(name) or by_name.get(name.replace("-", "_"))
    if path is None:
        raise unknown_name(_WORDS.get(kind, kind), name, by_name)
    return path
