"""The Python files that an objective names under `kinds:`, as text: what is in them is part of what a run is."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tepo.common import paths
from tepo.common.schema import Location

FOLDER = "kinds/ of your TEPO_PATH"
_FIX = "kinds: NAME for kinds/NAME.py in a folder of TEPO_PATH, or a path that ends with .py"


def read_kind_files(value: Any, folder: Path, at: Location) -> dict[str, str]:
    """File -> its text, for a name, a path, or a list of them; a mapping has been read before and stays as it is.
    folder: where a relative path starts. Raises UserError for what is no file."""
    if isinstance(value, Mapping):
        return {str(name): str(text) for name, text in value.items()}
    given = value if isinstance(value, list | tuple) else [value]
    if not given or not all(isinstance(one, str) and one for one in given):
        raise at.error(f"kinds names Python files, not {value!r}", fix=_FIX)
    texts = {}
    for name in given:
        if name.endswith(".py"):
            path = Path(os.path.normpath(folder / Path(name).expanduser()))
        else:
            with at.named():
                path = paths.find("kinds", name)
        try:
            texts[str(path)] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise at.error(f"{path} is not a text file in UTF-8", fix="save it as UTF-8") from None
        except OSError as error:
            raise at.error(f"{path} cannot be read: {error.strerror}", fix=_FIX) from None
    return texts


def kept_files(objective: Mapping[str, Any]) -> dict[str, str]:
    """Python file -> text, as the configuration of a run keeps them beside the axes of its objective."""
    return read_kind_files(objective["kinds"], Path(), Location(lambda _: "kinds")) if "kinds" in objective else {}


def foreign_files(objective: Mapping[str, Any], own: Collection[str] = ()) -> list[str]:
    """Names of the kept files whose text is that of no file in `kinds/` of TEPO_PATH and none of `own`."""
    kept = kept_files(objective)
    known = {path.read_text(encoding="utf-8", errors="replace") for path in paths.files("kinds").values() if kept}
    return [name for name, text in kept.items() if text not in known and text not in own]
