"""Every objective of the papers as its formula, usable on its own: see docs/formula.md."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tepo.formula.formula import Needs
from tepo.formula.row import load_row, names, row_of
from tepo.objectives.batch import Collectives, Groups, TokenBatch
from tepo.objectives.objective import Loss, Metrics, Objective, Plan
from tepo.objectives.own_functions import Layout, function

__all__ = [
    "Collectives",
    "Groups",
    "Layout",
    "Loss",
    "Metrics",
    "Needs",
    "Objective",
    "Plan",
    "TokenBatch",
    "function",
    "load_objective",
    "names",
]

_MADE: dict[str, Objective] = {}  # of mappings that name no files of code, which may change: a run asks again and again


def load_objective(
    source: str | Path | Mapping[str, Any] | Objective, changes: Mapping[str, Any] | None = None
) -> Objective:
    """The objective of a name (`tepo`, `gspo` …, or a file in `objective/` of TEPO_PATH), of a file like
    `tepo/config/objective/NAME.yaml` (a Path, or a text that ends with `.yaml`), or of a mapping like such a file,
    which may carry a `name`; or an objective itself. changes: constants, lines, `average` and `keep` that are set in it
    (`{"beta": 1}`).

    Raises UserError for an unknown name or key, naming the nearest valid one, and with a caret for what is wrong in a
    line."""
    if isinstance(source, Objective):
        return load_objective(source.mapping, changes) if changes else source
    if isinstance(source, Mapping) and not changes and not source.get("functions"):
        objective = _MADE.get(key := repr(source))
        return objective or _MADE.setdefault(key, Objective(**row_of(source).parts))
    row = row_of(source, changes) if isinstance(source, Mapping) else load_row(source, changes)
    return Objective(**row.parts)
