"""A user's own problems and model: `data=FILE` or a set of the hub, `data.problems=NAME`, `model=FOLDER` or a hub id.

Such a value stands for the option `_own` of its group, whose file holds the defaults. Labels come from what is named.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tepo.common.errors import UserError
from tepo.common.paths import PACKAGE

OPTION = "_own"
LEAF = {"data": "data.problems", "model": "model.path"}  # the key that holds what the value names
DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
SHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")
PACKED = (".gz", ".zip", ".bz2", ".xz", ".zst", ".7z", ".tar", ".tgz")
GYM = "reasoning_gym:"  # a task of reasoning-gym
HUB_DATA = re.compile(r"(?P<path>[\w-][\w.-]*/[\w.-]+)(/(?P<config>[\w.-]+))?(:(?P<split>[\w.-]+))?")
_GYM_REWARD = str(PACKAGE / "problems/rewards/gym_reward.py")
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_SHIPPED, _CACHED = "package:", "cache:"
SERVED = "openai:"  # before the address and the name of a model that others serve


def is_own(group: str, value: str) -> bool:
    """Tell whether a value of `data=`, `objective=` or `model=` names a file, a folder or a hub id by its shape;
    whether it is there, its reader says."""
    value = unquoted(value)
    if group == "objective":
        return value.endswith((".yaml", ".yml"))
    if group == "data":
        return is_data_file(value) or value.startswith(GYM) or bool(HUB_DATA.fullmatch(value))
    if group != "model":
        return False
    shaped = value.startswith((_SHIPPED, _CACHED, SERVED, "/", "./", "../", "~")) or bool(_HUB_ID.fullmatch(value))
    return shaped or (bool(value) and Path(value).is_dir())


def is_data_file(value: str) -> bool:
    """Tell whether a value of `data=` names a file, of a kind that is read, or of one that its reader refuses."""
    suffix = Path(value).suffix.lower()
    return suffix in DATA_SUFFIXES + SHEETS + PACKED or (bool(suffix) and Path(value).expanduser().is_file())


def unquoted(value: str) -> str:
    """The value without the quotes that Hydra's grammar may have asked for."""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def with_options(given: Mapping[str, str], options: Mapping[str, list[str]]) -> dict[str, str]:
    """The overrides (key -> value; of a key given twice the last) with own places put as an option and a key. Raises
    UserError where the same thing is named twice, in two ways."""
    words = dict(given)
    for group, leaf in LEAF.items():
        value = words.get(group)
        if value is None or value in options[group] or not is_own(group, value):
            continue
        if unquoted(given.get(leaf, value)) != unquoted(value):
            raise UserError(f"{group}={value} and {leaf}={given[leaf]} name two", fix="keep one of them")
        words |= {group: OPTION, leaf: unquoted(value)}
    return words


def implied_data(given: Mapping[str, str], data: Mapping[str, Any]) -> bool:
    """Tell whether named problems ask for the group `_own` in place of a default of generated tasks. `data`: the
    section composed so far. Raises UserError for words that say both that problems are read and that they are
    generated."""
    if not data.get("problems"):
        return False
    tasks = [key for key in given if key.startswith("data.tasks.")]
    named = f"data.problems={data['problems']}"
    if tasks or given.get("data.kind") == "procedural":
        other = tasks[0] if tasks else "data.kind=procedural"
        raise UserError(f"{named} reads problems, and {other} generates them", fix="keep one of them")
    if not data.get("tasks"):
        return False
    if "data" not in given:
        return True
    if given.get("data.kind") != "problems":
        fix = "leave data= out, or add data.kind=problems to keep its other settings"
        raise UserError(f"{named} reads problems, and data={given['data']} generates them", fix=fix)
    return False


def settle(given: Mapping[str, str], plain: dict[str, Any]) -> None:
    """Fill in what follows from the composed data and model: kind, prompt and labels. Raises UserError for a base that
    is not used."""
    data, model = plain["data"], plain["model"]
    if data.get("problems") and data.get("kind") == "problems":
        data["tasks"] = {}
        if "data.problems" in given and "data.name" not in given:
            data["name"] = Path(data["problems"]).stem
    if "data.base" in given and model.get("path") != data["base"]:
        what = "data.base is what model=laptop starts from, and another model was chosen"
        raise UserError(what, where=f"data.base={data['base']}", fix="model=FOLDER")
    if {"model.path", "data.base"} & set(given) and "model.name" not in given:
        model["name"] = label(model["path"])
    if "model.path" in given and "model.revision" not in given:  # the option's is that of its own model
        model["revision"] = None
    if str(data.get("problems")).startswith(GYM) and not data.get("reward"):
        data["reward"] = _GYM_REWARD
    if data.get("prompt") == "auto":  # the alphabet of a shipped base has no letters for the instruction
        data["prompt"] = "raw" if str(model["path"]).startswith(_SHIPPED) else "boxed"


def label(path: str) -> str:
    """Short name of a model in lists and tables: the last part of its path or hub id."""
    for kind in (_SHIPPED, _CACHED):
        if path.startswith(kind):
            return path.removeprefix(kind)
    return Path(path).expanduser().absolute().name or path
