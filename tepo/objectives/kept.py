"""The objective that a run keeps. The Python files kept with it are executed only where they are the reader's own."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tepo import paths
from tepo.errors import UserError
from tepo.kind_files import read_kind_files
from tepo.objectives.loading import OWN, load_objective
from tepo.objectives.objective import Objective
from tepo.strict import Location

_FOLDER = "kinds/ of your TEPO_PATH"


def foreign_files(objective: Mapping[str, Any], own: Collection[str] = ()) -> list[str]:
    """Names of the kept files whose text is that of no file in `kinds/` of TEPO_PATH and none of `own`."""
    known = {path.read_text(encoding="utf-8", errors="replace") for path in paths.files("kinds").values()}
    return [name for name, text in _files(objective).items() if text not in known and text not in own]


def kept_objective(objective: Mapping[str, Any], run: Path, *, trust: bool = False) -> Objective:
    """The objective of a run's configuration. trust: execute its Python files whatever is in them.

    Raises UserError where they are not the reader's own."""
    foreign = [] if trust else foreign_files(objective)
    if foreign:
        fix = f"read it there (`full`, `objective`, `kinds`); --trust executes it, and so does a copy in {_FOLDER}"
        what = f"the run keeps Python that is not in {_FOLDER}: {', '.join(foreign)}"
        raise UserError(what, where=str(run / "config.json"), fix=fix)
    return load_objective({**objective, OWN: _files(objective)} if OWN in objective else objective)


def _files(objective: Mapping[str, Any]) -> dict[str, str]:
    return read_kind_files(objective[OWN], Path(), Location(lambda _: OWN)) if OWN in objective else {}
