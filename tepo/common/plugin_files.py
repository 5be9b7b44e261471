"""Python files of a user's own, as text: what is in them is part of what a run is.

An objective names some under `functions:`, training data under `reward:`."""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tepo.common import paths
from tepo.common.errors import UserError
from tepo.common.schema import Location

FOLDER = "functions/ of your TEPO_PATH"
_FIX = "a path that ends with .py, or NAME for {}/NAME.py in a folder of TEPO_PATH"


def read_python(kind: str, name: str, folder: Path, at: Location) -> tuple[str, str]:
    """Path and text of the Python file that a name or a path (ends with .py) stands for. kind: its folder on TEPO_PATH.
    folder: where a relative path starts. Raises UserError for what is no file."""
    if name.endswith(".py"):
        path = Path(os.path.normpath(folder / Path(name).expanduser()))
    else:
        try:
            path = paths.find(kind, name)
        except UserError as error:
            raise at.error(error.what, fix=f"{error.fix}; {_FIX.format(kind)}") from None
    try:
        return str(path), path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise at.error(f"{path} is not a text file in UTF-8", fix="save it as UTF-8") from None
    except OSError as error:
        raise at.error(f"{path} cannot be read: {error.strerror}", fix=_FIX.format(kind)) from None


def read_function_files(value: Any, folder: Path, at: Location) -> dict[str, str]:
    """File -> its text, for a name, a path, or a list of them; a mapping has been read before and stays as it is.
    folder: where a relative path starts. Raises UserError for what is no file."""
    if isinstance(value, Mapping):
        return {str(name): str(text) for name, text in value.items()}
    names = value if isinstance(value, list | tuple) else [value]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise at.error(f"functions names Python files, not {value!r}", fix=_FIX.format("functions"))
    return dict(read_python("functions", name, folder, at) for name in names)


def kept_files(objective: Mapping[str, Any]) -> dict[str, str]:
    """Python file -> text, as the configuration of a run keeps them beside the formula of its objective."""
    functions = objective.get("functions", {})
    return read_function_files(functions, Path(), Location(lambda _: "functions")) if functions else {}


def foreign_files(objective: Mapping[str, Any], own: Collection[str] = ()) -> list[str]:
    """Names of the kept files whose text is that of no file in `functions/` of TEPO_PATH and none of `own`."""
    return foreign("functions", kept_files(objective), own)


def foreign(kind: str, kept: Mapping[str, str], own: Collection[str] = ()) -> list[str]:
    """Names of the files (name -> text) whose text is that of no file in the folders of that kind and none of `own`."""
    known_texts = {path.read_text(encoding="utf-8", errors="replace") for path in paths.files(kind).values() if kept}
    return [name for name, text in kept.items() if text not in known_texts and text not in own]


@contextmanager
def located(files: Mapping[str, str], fix: str, before: str = "") -> Iterator[None]:
    """Turn any error that comes out of one of the files (name -> text) into a UserError with its line. before: what its
    sentence begins with."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        where, trace = "", error.__traceback__
        while trace is not None:  # the innermost call in one of the files
            if trace.tb_frame.f_code.co_filename in files:
                where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
            trace = trace.tb_next
        if not where:
            raise
        raise UserError(f"{before}{type(error).__name__}: {error}", where=where, fix=fix) from error
