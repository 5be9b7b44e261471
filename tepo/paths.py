"""Where the declarative files are: the user's folders in front, then the ones that ship with the package.

`TEPO_PATH` (folders separated by the system's path separator) may hold `experiments/`, `ablations/`, `evals/` and
`records/` of a user's own; a file there wins over a shipped one of the same name.
"""

import os
from pathlib import Path

from tepo.errors import UserError, unknown_name

PACKAGE = Path(__file__).parent
KINDS = ("experiments", "ablations", "evals", "records")


def folders(kind: str) -> list[Path]:
    """Folders that hold files of a kind (one of KINDS), first match wins.

    Raises UserError for a folder of TEPO_PATH that is not there.
    """
    own = [Path(part) / kind for part in os.environ.get("TEPO_PATH", "").split(os.pathsep) if part]
    for folder in own:
        if not folder.parent.is_dir():
            raise UserError(
                "no such folder",
                where=f"TEPO_PATH={os.environ['TEPO_PATH']}",
                fix=f"make {folder.parent}, or take it out of TEPO_PATH",
            )
    return [folder for folder in (*own, shipped(kind)) if folder.is_dir()]


def shipped(kind: str) -> Path:
    """The folder that came with the package: in a wheel inside it, in a checkout at the top."""
    inside = PACKAGE / "_data" / kind
    return inside if inside.is_dir() else PACKAGE.parent / kind


def names(kind: str) -> list[str]:
    """Names (file stems) of all YAML files of a kind."""
    return sorted({path.stem for folder in folders(kind) for path in folder.glob("*.yaml") if path.is_file()})


def find(kind: str, name: str) -> Path:
    """The file of that name (`-` and `_` are the same). Raises UserError with the nearest valid name."""
    for folder in folders(kind):
        for stem in (name, name.replace("-", "_")):
            if (folder / f"{stem}.yaml").is_file():
                return folder / f"{stem}.yaml"
    raise unknown_name({"evals": "benchmark"}.get(kind, kind.removesuffix("s")), name, names(kind))
