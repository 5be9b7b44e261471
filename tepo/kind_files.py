"""The Python files that an objective names under `kinds:`, as text: what is in them is part of what a run is."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tepo import paths
from tepo.strict import Location

_FIX = "kinds: NAME for kinds/NAME.py in a folder of TEPO_PATH, or a path that ends with .py"


def read_kind_files(value: Any, folder: Path, at: Location) -> dict[str, str]:
    """File -> its text, for a name, a path, or a list of them; a mapping has been read before and stays as it is.

    folder: where a relative path starts. Raises UserError for what is no file.
    """
    if isinstance(value, Mapping):
        return {str(name): str(text) for name, text in value.items()}
    given = value if isinstance(value, list | tuple) else [value]
    if not given or not all(isinstance(one, str) and one for one in given):
        raise at.error(f"kinds names Python files, not {value!r}", fix=_FIX)
    return dict(_read(one, folder, at) for one in given)


def _read(name: str, folder: Path, at: Location) -> tuple[str, str]:
    if name.endswith(".py"):
        path = Path(os.path.normpath(folder / Path(name).expanduser()))
    else:
        with at.named():
            path = paths.find("kinds", name)
    try:
        return str(path), path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise at.error(f"{path} is not a text file in UTF-8", fix="save it as UTF-8") from None
    except OSError as error:
        raise at.error(f"{path} cannot be read: {error.strerror}", fix=_FIX) from None
