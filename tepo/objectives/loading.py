"""From a name or a mapping to an Objective, checked strictly."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tepo.errors import UserError, unknown_name
from tepo.objectives import advantage, aggregation, penalty, ratio, surrogate
from tepo.objectives.objective import Objective
from tepo.objectives.options import parse

FOLDER = Path(__file__).parents[1] / "config" / "objective"
AXES = ("advantage", "ratio", "surrogate", "penalty", "aggregation")


def names() -> list[str]:
    """Names of the objectives that ship with tepo."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def _text(name: str) -> str:
    for stem in (name, name.replace("-", "_")):
        if (FOLDER / f"{stem}.yaml").is_file():
            return (FOLDER / f"{stem}.yaml").read_text()
    raise unknown_name("objective", name, names())


def load_objective(source: str | Mapping[str, Any], *, kl_estimator: str | None = None) -> Objective:
    """The objective of a shipped name (`tepo`, `gspo` …) or of a mapping of axes, as in `tepo/config/objective/NAME.yaml`.

    A mapping may carry a `name`. `kl_estimator` takes the place of k3, the default estimator (small vocabularies: `full`).
    Raises UserError for an unknown name, axis, kind, key or value, naming the nearest valid one."""
    if isinstance(source, str):
        given, name, where = yaml.safe_load(_text(source)), source.replace("-", "_"), f"objective {source}"
    else:
        given = dict(source)
        name = given.pop("name", None) or "custom"
        where = f"objective {name}"
    for axis in given:
        if axis not in AXES:
            raise unknown_name("axis of an objective", str(axis), AXES, where=where)
    for axis in ("advantage", "ratio", "surrogate", "aggregation"):
        if axis not in given:
            raise UserError(f"{axis} is missing", where=where, fix="see tepo/config/objective/ for examples")
    wanted = given.get("penalty") or []
    parts = [parse("penalty", part, penalty.KINDS, where=where) for part in ([wanted] if isinstance(wanted, Mapping) else wanted)]
    if kl_estimator is not None:
        parts = [replace(part, estimator=kl_estimator) if part.estimator == "k3" else part for part in parts]
    return Objective(
        name=name,
        advantage=parse("advantage", given["advantage"], advantage.KINDS, where=where),
        ratio=parse("ratio", given["ratio"], ratio.LEVELS, tag="level", where=where),
        surrogate=parse("surrogate", given["surrogate"], surrogate.KINDS, where=where),
        penalties=tuple(parts),
        aggregation=parse("aggregation", given["aggregation"], aggregation.KINDS, where=where),
    )
