"""From a name or a mapping to an Objective, checked strictly, and back to the full mapping."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from tepo.errors import UserError, unknown_name
from tepo.objectives import advantage, aggregation, correction, overlong, penalty, ratio, surrogate, weight
from tepo.objectives.objective import Objective
from tepo.objectives.options import in_force, parse, to_mapping

FOLDER = Path(__file__).parents[1] / "config" / "objective"
AXES: dict[
    str, tuple[str, Mapping[str, type], Any]
] = {  # axis: the key that names the kind, the kinds, the neutral choice
    "overlong": ("kind", overlong.KINDS, "keep"),
    "advantage": ("kind", advantage.KINDS, None),
    "ratio": ("level", ratio.LEVELS, None),
    "surrogate": ("kind", surrogate.KINDS, None),
    "weight": ("kind", weight.KINDS, "uniform"),
    "correction": ("kind", correction.KINDS, "none"),
    "penalty": ("kind", penalty.KINDS, "none"),
    "aggregation": ("kind", aggregation.KINDS, None),
}


def names() -> list[str]:
    """Names of the objectives that ship with tepo."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def text(name: str) -> str:
    """The YAML of a shipped objective (`-` and `_` are the same). Raises UserError with the nearest valid name."""
    path = FOLDER / f"{name.replace('-', '_')}.yaml"
    if not path.is_file():
        raise unknown_name("objective", name, names())
    return path.read_text(encoding="utf-8")


def load_objective(source: str | Mapping[str, Any]) -> Objective:
    """The objective of a shipped name (`tepo`, `gspo` …) or of a mapping of axes,
    as in `tepo/config/objective/NAME.yaml`.

    A mapping may carry a `name`. Raises UserError for an unknown name, axis, kind, key or value, naming the nearest
    valid one, for axes that do not fit, and for a setting that could have no effect."""
    if isinstance(source, str):
        given, name = dict(yaml.safe_load(text(source))), source.replace("-", "_")
    else:
        given = dict(source)
        name = given.pop("name", None) or "custom"
    where = f"objective {name}"
    for axis in given:
        if axis not in AXES:
            raise unknown_name("axis of an objective", str(axis), AXES, where=where)
    parsed = {axis: _axis(axis, given.get(axis), where) for axis in AXES if axis != "penalty"}
    objective = Objective(name=name, penalties=_penalties(given.get("penalty"), where), **parsed)
    _check_fit(objective, where)
    return objective


def _axis(axis: str, given: Any, where: str) -> Any:
    """One axis from its mapping; left out means the neutral choice."""
    tag, kinds, neutral = AXES[axis]
    if given is None and neutral is None:
        raise UserError(f"{axis} is missing", where=where, fix=f"add {axis}: {{{tag}: …}}; valid: {', '.join(kinds)}")
    return parse(axis, neutral if given is None else given, kinds, tag=tag, where=where)


def _penalties(given: Any, where: str) -> tuple[penalty.Penalty, ...]:
    """One mapping, a list of them, or none."""
    if given in (None, "none") or (isinstance(given, Mapping) and given.get("kind") == "none"):
        return ()
    parts = [given] if isinstance(given, str | Mapping) else given
    return tuple(parse("penalty", part, penalty.KINDS, where=where) for part in parts)


def parts_of(objective: Objective) -> list[tuple[str, Any]]:
    """(axis, options), penalties one by one."""
    return [
        (axis, part)
        for axis in AXES
        for part in (objective.penalties if axis == "penalty" else (getattr(objective, axis),))
    ]


def _check_fit(objective: Objective, where: str) -> None:
    """Axes that exclude each other, and settings that would be taken and change nothing."""
    for axis, options in parts_of(objective):
        for part in fields(options):
            value = getattr(options, part.name)
            if value != part.default and not in_force(options, part.name):
                raise UserError(
                    f"{axis}.{part.name}={value} has no effect beside the other settings of {axis}",
                    where=where,
                    fix=f"leave it out; what it is for: {part.metadata['meaning']}",
                )
    _check_ratio(objective, where)
    full = {part.needs.full_kl_anchor for part in objective.penalties if part.needs.full_kl}
    if len(full) > 1:
        raise UserError(
            "two exact KL penalties with different anchors",
            where=where,
            fix="use a sampled estimator (k3) for one of them",
        )


def _check_ratio(objective: Objective, where: str) -> None:
    """A surrogate that goes with one ratio alone has it, and one that takes a ratio has one."""
    only, kind = objective.surrogate.only_ratio, to_mapping(objective.surrogate, surrogate.KINDS)["kind"]
    if only is not None and objective.ratio != only:
        wanted = ", ".join(f"{key}: {value}" for key, value in to_mapping(only, ratio.LEVELS, tag="level").items())
        raise UserError(f"surrogate {kind} goes with one ratio alone", where=where, fix=f"ratio: {{{wanted}}}")
    if only is None and objective.ratio == ratio.NoRatio():
        raise UserError(
            f"surrogate {kind} takes a ratio, and ratio is none",
            where=where,
            fix="surrogate.kind: log_prob, or a ratio with surrogate.kind: cispo for a weighted log-prob",
        )


def objective_mapping(objective: Objective) -> dict[str, Any]:
    """The full mapping of an objective, defaults included:
    what its results depend on, and what `load_objective` takes back."""
    found: dict[str, Any] = {"name": objective.name}
    for axis, (tag, kinds, _) in AXES.items():
        if axis == "penalty":
            found[axis] = [to_mapping(part, kinds, tag=tag) for part in objective.penalties]
        else:
            found[axis] = to_mapping(getattr(objective, axis), kinds, tag=tag)
    return found
