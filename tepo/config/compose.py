"""From overrides to a checked RunConfig: files of options one over the other, the overrides above them, and the strict
reader, which gives an unknown name the nearest valid one."""

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from tepo.common import paths
from tepo.common.errors import UserError, unknown_name
from tepo.common.paths import GROUPS
from tepo.common.schema import Keys, Location, read
from tepo.common.schema.document import Document, load
from tepo.config import own_files
from tepo.config.own_reward import read_prompt, read_rewards
from tepo.config.run_config import RunConfig
from tepo.formula import row

_FUNCTION = re.compile(r"data\.reward\.\w+\.function")
_IN_QUOTES = "in quotes, as in " + shlex.quote('data.reward={short: {file: "a,b.py"}}')
_ITEM = re.compile(rf"\s*({own_files.QUOTED.pattern}|[^,]*?)\s*(?:,|$)", re.DOTALL)
_REFERENCE = re.compile(r"(\\?)\$\{([^{}]*)\}?")


def options(group: str) -> list[str]:
    """Names of a group's YAML files, a user's own among them; one that begins with _ stands for something else
    (`own`)."""
    return paths.names(group)


def _file(group: str, option: str) -> Path:
    """The file of an option."""
    return paths.files(group).get(option, paths.CONFIG / group / f"{option}.yaml")


def compose(overrides: Sequence[str] = ()) -> RunConfig:
    """Compose and check a configuration. Raises UserError for a malformed override, an unknown key or group option, a
    wrong type or a value out of bounds."""
    for text in overrides:
        check_override(text)
    given = dict(map(_split, overrides))
    named, changes = given.pop("objective", row.DEFAULT), {}
    for key in [key for key in given if key.startswith("objective.")]:
        changes[key.removeprefix("objective.")] = own_files.unquoted(given.pop(key))
    objective = _objective(own_files.unquoted(named), tuple(changes.items()))
    words = own_files.with_options(given, {group: options(group) for group in own_files.LEAF})
    plain, chosen = _made(words, given)
    if own_files.implied_data(words, plain["data"]):
        plain, chosen = _made(words | {"data": own_files.OPTION}, given)
    plain.pop("studies", None)  # of a scale: tepo.studies.study
    own_files.settle(words, plain)
    plain["objective"] = objective.formula.mapping
    at = Location(_origin(given, chosen))
    data = plain["data"]
    for leaf, reader in (("reward", read_rewards), ("prompt", read_prompt)):
        if leaf in data:
            folder = Path() if f"data.{leaf}" in given else _file("data", chosen["data"]).parent
            data[leaf] = reader(data[leaf], folder, at.at("data", leaf))
    config = read(RunConfig, plain, at)
    if config.train.exact_kl and "kl" not in changes:
        config.objective = objective.with_exact_kl().formula.mapping
    config.store = os.path.expanduser(config.store)
    if not config.store:
        raise at.at("store").error("store is empty", fix="name a folder: --store runs")
    if config.data.kind == "problems" and not config.data.problems:
        fix = "data=FILE.jsonl, data=dapo, or data.problems=NAME"
        raise at.at("data", "problems").error("data.kind=problems names no problems", fix=fix)
    with at.at("data", "benchmarks").named():
        for name in config.data.benchmarks:
            paths.find("evals", name.partition(":")[0])
    for group, kind in (("sampler", config.sampler.kind), ("engine", config.engine.kind)):
        if kind not in options(group):
            raise at.at(group, "kind").unknown(f"{group}.kind", kind, options(group))
    return config


def _objective(named: str, changes: tuple[tuple[str, str], ...]) -> row.Row:
    """The row of an objective: of a name read once while the files of all names do not change; of a file, and with
    functions, each time, for what they name beside them may have changed."""
    if own_files.is_own("objective", named):
        return row.load_row(named, dict(changes))
    files = tuple((path, path.stat().st_mtime_ns) for path in paths.files("objective").values())
    found = _read_objective(named, changes, files)
    return row.load_row(named, dict(changes)) if found.functions else found


@lru_cache(maxsize=1024)
def _read_objective(named: str, changes: tuple[tuple[str, str], ...], _files: Any) -> row.Row:
    found = row.load_row(named, dict(changes))
    _ = found.formula
    return found


def _made(words: Mapping[str, str], given: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The configuration in plain values and the option of each group. From below to above: config.yaml, the options of
    the groups, the scale's, the other overrides; then references are resolved. A scale may choose other options."""
    base = _document(paths.CONFIG / "config.yaml")
    scale = words.get("scale", base.data["defaults"]["scale"])
    of_scale = _document(_file("scale", scale))
    defaults = of_scale.data.get("defaults", {})
    if not isinstance(defaults, Mapping):
        raise of_scale.at.at("defaults").error("defaults is a mapping", fix="defaults: {model: qwen2.5-7b, data: dapo}")
    for group, option in defaults.items():
        if group not in base.data["defaults"] or option not in options(group):
            known = options(group) if group in base.data["defaults"] else base.data["defaults"]
            raise of_scale.at.at("defaults", group).unknown("default", option if group in GROUPS else group, known)
    chosen = {**base.data["defaults"], **defaults, **{group: words[group] for group in GROUPS if group in words}}
    chosen["scale"] = scale
    plain: dict[str, Any] = _over({}, base.data)
    for group, option in chosen.items():  # the scale last
        data = _document(_file(group, option)).data
        plain = _over(plain, data if _sets_all(group, data) else {group: data})
    del plain["defaults"]
    at = Location(_origin(given, chosen))
    for section in ("model", "data"):
        if not isinstance(plain[section], Mapping):
            raise at.at(section).error(f"{section} is a mapping, not {plain[section]!r}")
    for key, text in words.items():
        if key not in GROUPS:
            *between, leaf = key.split(".")
            inner = plain
            for name in between:
                inner = inner.setdefault(name, {})
                if not isinstance(inner, dict):
                    raise UserError(f"{key} is a part of what is set as a whole", where=f"{key}={text}")
            inner[leaf] = _value(key, text)
    return _resolved(plain, plain, at), chosen


def _document(path: Path) -> Document:
    """A file, kept while it does not change: a study has hundreds of rows with the same options."""
    state = path.stat()
    return _loaded(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=256)
def _loaded(path: Path, *_state: int) -> Document:
    return load(path)


def _sets_all(group: str, data: Mapping[str, Any]) -> bool:
    """Tell whether the file of an option sets any section, each by its name, and not only that of its group."""
    return group == "scale" or group in data


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two mappings as a new one: of the same key the value above, but mappings are put together."""
    result = dict(below)
    for key, value in above.items():
        under = below.get(key)
        result[key] = _over(under if isinstance(under, Mapping) else {}, value) if isinstance(value, Mapping) else value
    return result


def _resolved(value: Any, plain: Mapping[str, Any], at: Location, within: tuple[str, ...] = ()) -> Any:
    """The value with what `${train.steps}` refers to, a key of the configuration, or `${train.steps, 3}`, a number or
    text where the key has no value. Nothing outside of the configuration can be read: it would be stored with every
    run. `\\${` are the characters themselves. Raises UserError for what is no key, and for a circle."""
    if isinstance(value, Mapping):
        return {key: _resolved(inner, plain, at.at(key), within) for key, inner in value.items()}
    if isinstance(value, list):
        return [_resolved(inner, plain, at.at(index), within) for index, inner in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value

    def found(match: re.Match[str]) -> Any:
        if match[1]:
            return match[0][1:]
        key, _, default = (part.strip() for part in match[2].partition(","))
        there: Any = plain
        for name in key.split("."):
            there = there.get(name) if isinstance(there, Mapping) else None
        if (there is None and not default and key not in _types()) or isinstance(there, Mapping) or key in within:
            what = "what stands in ${…} is no key of the configuration" if key not in within else f"{key} is itself"
            raise at.error(what, fix="'\\${' are the characters themselves")
        return _resolved(default if there is None and default else there, plain, at, (*within, key))

    if (match := _REFERENCE.fullmatch(value)) and not match[1]:
        return found(match)
    return _REFERENCE.sub(lambda match: str(found(match)), value)


def _split(text: str) -> tuple[str, str]:
    """`key=value` without Hydra's leading `+`."""
    if re.search("[\0\ud800-\udfff]", text):  # which no command line and no file can hold
        raise UserError(f"not an override, as it is no text in UTF-8: {text!a}")
    key, equals, value = text.partition("=")
    key = key.lstrip("+").strip()
    if not equals or not re.fullmatch(r"[\w.]+", key):
        fix = "write key=value, for example train.steps=40 or objective=gspo"
        raise UserError(f"not an override: {text!r}", fix=fix)
    return key, value


def _origin(given: Mapping[str, str], chosen: Mapping[str, str]) -> Callable[[Keys], str]:
    """Says of a key which override set it, else which line of which file; `chosen`: the option of each group."""

    def origin(keys: Keys) -> str:
        dotted, top = ".".join(map(str, keys)), "".join(map(str, keys[:1]))
        for key, value in reversed(list(given.items())):
            if key not in GROUPS and f"{dotted}.".startswith(f"{key}."):
                return f"{key}={value}"
        files = {_file(group, chosen[group]): group for group in ("scale", top) if keys and group in GROUPS}
        for path, group in {**files, paths.CONFIG / "config.yaml": ""}.items():
            document = load(path)
            if line := document.line(keys if group != top or _sets_all(group, document.data) else keys[1:]):
                return f"{path}:{line}"
        return "the configuration"

    return origin


def check_override(text: str) -> None:
    """Raise UserError for a key or an option of a group that does not exist; keys below `objective` and `data.tasks`
    their owners check."""
    key, value = _split(text)
    if key in GROUPS:
        if value not in options(key) and not own_files.is_own(key, value):
            error = unknown_name(f"{key} option", value, options(key), where=text)
            own = {"data": "a file of problems, FILE.jsonl", "model": "a folder, or a hub id like Qwen/Qwen2.5-7B"}
            raise UserError(error.what, where=text, fix="; or ".join(filter(None, (error.fix, own.get(key)))))
        return
    if key == "objective.name":
        raise UserError("an objective's name is that of its file", where=text, fix="objective=NAME chooses one")
    if key == "data.tasks":
        what = "data.tasks as a whole would be added to the mix that is there"
        raise UserError(what, where=text, fix="set weights one by one: data.tasks.add4=0")
    below = key.startswith(("objective.", "data.tasks.")) or re.fullmatch(r"data\.reward\.\w+\.(weight|function)", key)
    if not below and key not in _leaves():
        raise unknown_name("configuration key", key, _leaves(), where=text)


@cache
def _types() -> dict[str, Any]:
    """Dotted key of the schema -> its type, so that defaults left out of the YAML can be set too."""
    types: dict[str, Any] = {}
    for name, kind in get_type_hints(RunConfig).items():
        below = {f"{name}.{leaf}": of for leaf, of in get_type_hints(kind).items()} if is_dataclass(kind) else {}
        types |= below or {name: kind}
    return types


def is_text(key: str) -> bool:
    """Tell whether the value of a key is text, which is taken as it is typed."""
    own = key == "data.reward" or _FUNCTION.fullmatch(key)  # other schemas have these
    return bool(own) or _types().get(key) in (str, str | None)


def _value(key: str, text: str) -> Any:
    """Value of an override. Text, in a list too, is what was typed, or what is in the quotes that are all around it;
    a number or a truth value its reader makes of the text. Raises UserError for what is neither."""
    kind = _types().get(key)
    if text.lower() == "null" and kind is not str:
        return None
    if key == "data.reward" and text[:1] == "{":  # rewards by their names
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError:
            fix = f"close all brackets, and put text with other characters than letters, digits and ._-/: {_IN_QUOTES}"
            raise UserError(f"{text} is no mapping that can be read", where=f"{key}={text}", fix=fix) from None
    if kind == list[str] and text[:1] == "[" and text[-1:] == "]":
        return [own_files.unquoted(match[1]) for match in _ITEM.finditer(text[1:-1].strip()) if match[0]]
    if "," in text and not is_text(key) and text[:1] not in ("[", "{"):
        fix = "a command for each, or `vary:` in a study (docs/tables.md)"
        raise UserError(f"{text} lists several values, and a run has one", where=f"{key}={text}", fix=fix)
    return own_files.unquoted(text)


def _leaves() -> list[str]:
    """Dotted keys that can be set, the groups included."""
    return [*GROUPS, *(key for key in _types() if key not in GROUPS)]


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Plain nested dictionaries, as saved beside a run."""
    return asdict(config)
