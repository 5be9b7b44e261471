"""From a name, a file or a mapping to an Objective, checked strictly, and back to the full mapping;
the objective that a run keeps."""

import sys
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

from tepo.common import paths, trust
from tepo.common.errors import UserError
from tepo.common.plugin_files import FOLDER, foreign_files, kept_files, read_kind_files
from tepo.common.schema import Location, in_force, read_kind
from tepo.common.schema.document import load
from tepo.objectives.axes import (
    advantage,
    aggregation,
    correction,
    importance_ratio,
    overlong,
    penalty,
    surrogate,
    weight,
)
from tepo.objectives.objective import Objective
from tepo.objectives.plugins import check_values, with_own

# axis: the key that names the kind, the kinds, the neutral choice
AXES: dict[str, tuple[str, Mapping[str, type], Any]] = {
    "overlong": ("kind", overlong.KINDS, "keep"),
    "advantage": ("kind", advantage.KINDS, None),
    "ratio": ("level", importance_ratio.LEVELS, None),
    "surrogate": ("kind", surrogate.KINDS, None),
    "weight": ("kind", weight.KINDS, "uniform"),
    "correction": ("kind", correction.KINDS, "none"),
    "penalty": ("kind", penalty.KINDS, "none"),
    "aggregation": ("kind", aggregation.KINDS, None),
}
OWN = "kinds"  # beside the axes: the Python files that define kinds of the user's own


def names() -> list[str]:
    """Names of the objectives that ship with tepo, and of those in `objective/` of TEPO_PATH."""
    return paths.names("objective")


def text(name: str) -> str:
    """The YAML of an objective (`-` and `_` are the same). Raises UserError with the nearest valid name."""
    return paths.find("objective", name).read_text(encoding="utf-8")


def load_objective(source: str | Path | Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Objective:
    """The objective of a name (`tepo`, `gspo` …, or a file in `objective/` of TEPO_PATH), of a file like
    `tepo/config/objective/NAME.yaml` (a Path, or a str that ends with `.yaml`), or of a mapping of axes as in such a
    file, which may carry a `name`.

    `kinds: FILE.py` beside the axes names Python files whose kinds the axes may take (`tepo.objectives.plugins`).
    changes: settings by axis and key (`{"penalty.coefficient": 1}`), or an axis with all of its settings, which begins
    it afresh, as its kind alone does (`{"weight.kind": "uniform"}`); of several penalties `penalty.0.coefficient`.

    Raises UserError for an unknown name, axis, kind, key or value, naming the nearest valid one, for axes that do not
    fit, and for a setting that could have no effect."""
    if not isinstance(source, Mapping):
        if isinstance(source, str):
            source = Path(source) if source.endswith((".yaml", ".yml")) else paths.find("objective", source)
        document = load(source)
        name = document.path.stem
        return _composed(_changed(document.data, name, changes), name, document.at, document.path.parent)
    given = dict(source)
    name = given.pop("name", None) or "custom"
    try:
        return _composed(_changed(given, name, changes), name, Location(lambda _: f"objective {name}"), Path())
    except UserError:
        if name in names():
            load_objective(name)  # where the mistake is in the file, its line is named
        raise


def _changed(given: Mapping[str, Any], name: str, changes: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if not changes:
        return given
    mapping = deepcopy(dict(given))
    for key, value in changes.items():
        axis, _, setting = key.partition(".")
        if axis in AXES and setting in ("", AXES[axis][0]):  # an axis started afresh
            mapping[axis] = value
        elif axis in AXES and axis in mapping:
            mapping[axis] = _set(mapping[axis], setting, value, key, AXES[axis][0])
        else:
            fix = f"a setting of one of its axes: {', '.join(part for part in mapping if part in AXES)}"
            raise UserError(f"the objective {name} has no {axis} to change", where=key, fix=fix)
    return mapping


def _set(axis: Any, setting: str, value: Any, key: str, tag: str) -> Any:
    """An axis with one setting changed; of several penalties `0.coefficient` names the first one's."""
    parts = axis if isinstance(axis, list) else [axis]
    number, _, option = setting.rpartition(".")
    if not number and len(parts) > 1:
        raise UserError("which of the penalties?", where=key, fix=f"name it by its number, such as penalty.0.{option}")
    index = int(number or 0) if (number or "0").isdigit() else len(parts)
    if index >= len(parts):
        fix = f"change {key.split('.')[0]}.{option}"
        raise UserError(f"there is no {key.removesuffix(f'.{option}')}", where=key, fix=fix)
    made = [
        dict(part if isinstance(part, Mapping) else {tag: part}) | {option: value} if place == index else part
        for place, part in enumerate(parts)
    ]
    return made if isinstance(axis, list) else made[0]


def _composed(given: Mapping[str, Any], name: str, at: Location, folder: Path) -> Objective:
    """The objective of these axes; paths of Python files start at `folder`."""
    for axis in given:
        if axis not in (*AXES, OWN):
            raise at.at(str(axis)).unknown("axis of an objective", axis, (*AXES, OWN))
    files = read_kind_files(given[OWN], folder, at.at(OWN)) if OWN in given else {}
    kinds = kinds_of_axes(files)
    parsed = {}
    for axis, (tag, _, neutral) in AXES.items():
        chosen = neutral if given.get(axis) is None else given[axis]
        if chosen is None:
            raise at.error(f"{axis} is missing", fix=f"add {axis}: {{{tag}: …}}; valid: {', '.join(kinds[axis])}")
        if axis != "penalty":
            parsed[axis] = read_kind(kinds[axis], chosen, at.at(axis), tag)
    penalties = _penalties(given.get("penalty"), kinds["penalty"], at.at("penalty"))
    objective = Objective(name=name, penalties=penalties, files=tuple(files.items()), **parsed)
    used = set()
    for axis, part in parts_of(objective):
        check_values(part, axis, files)
        used.add(getattr(sys.modules.get(type(part).__module__), "__file__", None))
    for file in files:
        if file not in used:
            fix = "leave the file out, or name one of its kinds"
            raise at.at(OWN).error(f"no axis takes a kind of {file}", fix=fix)
    _check_fit(objective, at)
    return objective


def kinds_of_axes(files: Mapping[str, str]) -> dict[str, dict[str, type]]:
    return with_own({axis: shipped for axis, (_, shipped, _) in AXES.items()}, files)


def _penalties(given: Any, kinds: Mapping[str, type], at: Location) -> tuple[penalty.Penalty, ...]:
    if given in (None, "none") or (isinstance(given, Mapping) and given.get("kind") == "none"):
        return ()
    if isinstance(given, list | tuple):
        return tuple(read_kind(kinds, part, at.at(index)) for index, part in enumerate(given))
    return (read_kind(kinds, given, at),)


def parts_of(objective: Objective) -> list[tuple[str, Any]]:
    """(axis, options), penalties one by one."""
    return [
        (axis, part)
        for axis in AXES
        for part in (objective.penalties if axis == "penalty" else (getattr(objective, axis),))
    ]


def _check_fit(objective: Objective, at: Location) -> None:
    """Axes that exclude each other, and settings that would be taken and change nothing."""
    for axis, options in parts_of(objective):
        for part in fields(options):
            value = getattr(options, part.name)
            if value != part.default and not in_force(options, part.name):
                what = f"{axis}.{part.name}={value} has no effect beside the other settings of {axis}"
                fix = f"leave it out; what it is for: {part.metadata['meaning']}"
                raise at.at(axis, part.name).error(what, fix=fix)
    files = dict(objective.files)
    only, kind = objective.surrogate.only_ratio, _mapping(objective.surrogate, "surrogate", files)["kind"]
    if only is not None and objective.ratio != only:
        wanted = ", ".join(f"{key}: {value}" for key, value in _mapping(only, "ratio", files).items())
        raise at.at("ratio").error(f"surrogate {kind} goes with one ratio alone", fix=f"ratio: {{{wanted}}}")
    if only is None and objective.ratio == importance_ratio.NoRatio():
        fix = "surrogate.kind: log_prob, or a ratio with surrogate.kind: cispo for a weighted log-prob"
        raise at.at("surrogate").error(f"surrogate {kind} takes a ratio, and ratio is none", fix=fix)
    full = {part.needs.full_kl_anchor for part in objective.penalties if part.needs.full_kl}
    if len(full) > 1:
        what = "two exact KL penalties with different anchors"
        raise at.at("penalty").error(what, fix="use a sampled estimator (k3) for one of them")


def _mapping(options: Any, axis: str, files: Mapping[str, str]) -> dict[str, Any]:
    """The full mapping (defaults included) that `read_kind` turns into these options."""
    name = next(name for name, cls in kinds_of_axes(files)[axis].items() if cls is type(options))
    return {AXES[axis][0]: name, **{part.name: getattr(options, part.name) for part in fields(options)}}


def objective_mapping(objective: Objective) -> dict[str, Any]:
    """The full mapping of an objective, defaults included:
    what its results depend on, and what `load_objective` takes back."""
    result: dict[str, Any] = {"name": objective.name}
    files = dict(objective.files)
    if files:
        result[OWN] = files
    for axis in AXES:
        if axis == "penalty":
            result[axis] = [_mapping(part, axis, files) for part in objective.penalties]
        else:
            result[axis] = _mapping(getattr(objective, axis), axis, files)
    return result


def kept_objective(objective: Mapping[str, Any], run: Path) -> Objective:
    """The objective of a run's configuration. Raises UserError where its Python files are not the caller's own and he
    does not trust them."""
    if OWN in objective:
        objective = {**objective, OWN: kept_files(objective)}  # read once: what was looked at is what is executed
    if foreign := foreign_files(objective):
        what = f"the run keeps Python that is not in {FOLDER}: {', '.join(foreign)}"
        fix = f"read it there (`full`, `objective`, `kinds`); a copy in {FOLDER} is yours"
        trust.ask(what, str(run / "config.json"), fix)
    return load_objective(objective)
