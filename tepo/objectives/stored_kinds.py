"""The objective that a run keeps. The Python files kept with it are executed only where they are the caller's own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tepo.common import trust
from tepo.common.plugin_files import FOLDER, foreign_files, kept_files
from tepo.objectives.loading import OWN, load_objective
from tepo.objectives.objective import Objective


def kept_objective(objective: Mapping[str, Any], run: Path) -> Objective:
    """The objective of a run's configuration.

    Raises UserError where its Python files are not the caller's own and he does not trust them."""
    if OWN in objective:
        objective = {**objective, OWN: kept_files(objective)}  # read once: what was looked at is what is executed
    if foreign := foreign_files(objective):
        what = f"the run keeps Python that is not in {FOLDER}: {', '.join(foreign)}"
        fix = f"read it there (`full`, `objective`, `kinds`); a copy in {FOLDER} is yours"
        trust.ask(what, str(run / "config.json"), fix)
    return load_objective(objective)
