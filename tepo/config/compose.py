"""From overrides to a checked RunConfig: Hydra composes, the strict reader checks,
and an unknown name gets the nearest valid one."""

import contextlib
import copy
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from tepo.common import paths
from tepo.common.errors import UserError, unknown_name
from tepo.common.paths import GROUPS
from tepo.common.schema import Keys, Location, read
from tepo.config import own_files
from tepo.config.own_reward import read_prompt, read_rewards
from tepo.config.run_config import RunConfig, TrackerName
from tepo.formula import row

_RESOLVED = re.compile(r"\$\{[^}]*(:|\$\{)")
_FUNCTION = re.compile(r"data\.reward\.\w+\.function")
_QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
_IN_QUOTES = "in quotes, as in " + shlex.quote('data.reward={short: {file: "a,b.py"}}')
_ITEM = re.compile(rf"\s*({_QUOTED.pattern}|[^,]*?)\s*(?:,|$)", re.DOTALL)


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
    settings = dict(map(_split, overrides))
    named, changes = settings.pop("objective", row.DEFAULT), {}
    for key in [key for key in settings if key.startswith("objective.")]:
        changes[key.removeprefix("objective.")] = own_files.unquoted(settings.pop(key))
    objective = _objective(own_files.unquoted(named), tuple(changes.items()))
    words = own_files.with_options(settings, {group: options(group) for group in own_files.LEAF})
    try:
        plain, chosen = _made(words)
        if own_files.implied_data(words, plain["data"]):
            plain, chosen = _made(words | {"data": own_files.OPTION})
    except UserError:
        raise
    except Exception as error:  # Hydra raises many kinds; its first line says what was wrong
        raise _not_composed(error, words) from None
    plain.pop("studies", None)  # of a scale: tepo.studies.study
    if isinstance(plain.get("scale"), dict):
        what, fix = "its keys are taken as keys below `scale`", "`# @package _global_` as its first line"
        raise UserError(what, where=str(_file("scale", chosen["scale"])), fix=fix)
    own_files.settle(words, plain)
    if (teacher := plain["model"].get("teacher")) in options("model"):
        plain["model"]["teacher"] = _made({"model": teacher})[0]["model"]["path"]
    exact = plain["train"].get("exact_kl") and "kl" not in changes
    plain["objective"] = (objective.with_exact_kl() if exact else objective).formula.mapping
    at = Location(_origin(settings, chosen))
    data = plain["data"]
    for leaf, reader in (("reward", read_rewards), ("prompt", read_prompt)):
        if leaf in data:
            folder = Path() if f"data.{leaf}" in settings else _file("data", chosen["data"]).parent
            data[leaf] = reader(data[leaf], folder, at.at("data", leaf))
    _check_text(plain, at)
    config = read(RunConfig, plain, at)
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
    objective = _read_objective(named, changes, _versions("objective"))
    return row.load_row(named, dict(changes)) if objective.functions else objective


@lru_cache(maxsize=1024)
def _read_objective(named: str, changes: tuple[tuple[str, str], ...], _files: Any) -> row.Row:
    objective = row.load_row(named, dict(changes))
    _ = objective.formula
    return objective


def _not_composed(error: Exception, words: Mapping[str, str]) -> UserError:
    """The mistake that stopped Hydra: a file of a group that is no YAML, or a reference to a key that is not there."""
    from tepo.common.schema.document import load

    for path in (paths.CONFIG / "config.yaml", *(path for group in GROUPS for path in paths.files(group).values())):
        load(path)
    overrides = [f"{key}={value}" for key, value in words.items()]
    if referring := [word for word in overrides if "${" in word]:
        what, fix = "what stands in ${…} is no key of the configuration", "'\\${' are the characters themselves"
        return UserError(what, where=" ".join(referring), fix=fix)
    what = next(iter(str(error).splitlines()), "a reference ${…} in a file of the configuration leads nowhere")
    return UserError(what, where=" ".join(overrides), fix="see `tepo train --help`")


def _made(words: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Compose the options of groups with Hydra, kept while no file of theirs changes, and put the other overrides in as
    Hydra does: composing takes a tenth of a second, and a study has hundreds of rows with the same options."""
    from omegaconf import OmegaConf

    from tepo.common.schema.document import copied

    values = {key: _value(key, text) for key, text in words.items() if key not in GROUPS}
    groups = tuple(f"{key}={value!r}" for key, value in words.items() if key in GROUPS)
    files = _versions(*GROUPS)
    config, chosen = _options(groups, files)
    if all(key in _types() and _is_plain(value) for key, value in values.items()):
        resolved, names = _resolved(groups, files)
        apart = not any(_overlap(key, name) for key in values for name in names)
        if apart and _replace_all(plain := copied(resolved), values):
            return plain, dict(chosen)
    config = copy.deepcopy(config)
    for key, value in values.items():
        OmegaConf.update(config, key, value, merge=key != "data.reward", force_add=True)
    made: Any = OmegaConf.to_container(config, resolve=True)
    return made, dict(chosen)


@paths.once_a_look
def _versions(*groups: str) -> tuple[tuple[str, int, int], ...]:
    """Each file of the groups, as it now is."""
    files = ((str(path), os.stat(path)) for group in groups for path in paths.files(group).values())
    return tuple((path, status.st_mtime_ns, status.st_size) for path, status in files)


@lru_cache(maxsize=256)
def _options(groups: tuple[str, ...], _files: tuple[Any, ...]) -> tuple[Any, dict[str, str]]:
    """Hydra's compose over our groups and a user's own options, with its global state put back. The interpolations are
    not resolved yet, and read nothing outside. _files: what was read."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    from tepo.common.schema.document import load

    for path in (path for group in GROUPS for path in paths.files(group).values()):
        if not path.is_relative_to(paths.CONFIG) and "${" in path.read_text(encoding="utf-8", errors="replace"):
            document = load(path)
            check_inside(document.data.get("defaults"), document.at.at("defaults"))  # Hydra resolves these itself
    GlobalHydra.instance().clear()
    with _folder() as folder, initialize_config_dir(str(folder), version_base="1.3"):
        composed = compose("config", list(groups), return_hydra_config=True)
    chosen: Any = OmegaConf.to_container(composed.hydra.runtime.choices)
    config = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    check_inside(OmegaConf.to_container(config), Location(_origin({}, chosen)))
    return config, chosen


@lru_cache(maxsize=256)
def _resolved(groups: tuple[str, ...], files: tuple[Any, ...]) -> tuple[dict[str, Any], frozenset[str]]:
    """The options of `_options` with their interpolations resolved, and the keys that have or read one: while overrides
    leave those alone, this is what resolving after them would give, which takes most of the time."""
    from omegaconf import OmegaConf

    config, _ = _options(groups, files)
    names = set[str]()

    def look(value: Any, key: str) -> None:
        parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for name, inner in parts:
            look(inner, f"{key}.{name}".strip("."))
        if isinstance(value, str) and "${" in value:
            names.update((key, *re.findall(r"[\w.]+", value)))

    look(OmegaConf.to_container(config), "")
    resolved: Any = OmegaConf.to_container(config, resolve=True)
    return resolved, frozenset(names)


def _overlap(key: str, name: str) -> bool:
    """Tell whether one of two keys is at or below the other; a name from an interpolation that begins with a dot is
    relative, and may be any."""
    return name[0] == "." or f"{key}.".startswith(f"{name.strip('.')}.") or f"{name.strip('.')}.".startswith(f"{key}.")


def _is_plain(value: Any) -> bool:
    """Tell whether OmegaConf would put a value in as it is."""
    if type(value) is list:
        return all(type(item) is not list and _is_plain(item) for item in value)
    return value is None or type(value) in (bool, int, float) or (type(value) is str and "${" not in value)


def _replace_all(plain: dict[str, Any], values: Mapping[str, Any]) -> bool:
    """Put values into their sections. False where one is not there, or a value is a mapping so far."""
    for key, value in values.items():
        section, _, leaf = key.rpartition(".")
        around = plain.get(section) if section else plain
        if not isinstance(around, dict) or isinstance(around.get(leaf), dict):
            return False
        around[leaf] = value
    return True


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Our groups; with options of a user's own, a folder of links to the files that win."""
    files_by_group = {group: paths.files(group) for group in GROUPS}
    if all(path.is_relative_to(paths.CONFIG) for files in files_by_group.values() for path in files.values()):
        yield paths.CONFIG
        return
    with tempfile.TemporaryDirectory(prefix="tepo-") as name:
        folder = Path(name)
        (folder / "config.yaml").symlink_to(paths.CONFIG / "config.yaml")
        for group, files in files_by_group.items():
            (folder / group).mkdir()
            for path in (*(paths.CONFIG / group).glob("_*.yaml"), *files.values()):
                (folder / group / path.name).symlink_to(path.absolute())
        yield folder


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


def _origin(settings: Mapping[str, str], chosen: Mapping[str, str]) -> Callable[[Keys], str]:
    """Says of a key which override set it, else which line of which file; `chosen`: the option of each group."""

    def origin(keys: Keys) -> str:
        from tepo.common.schema.document import load

        dotted, top = ".".join(map(str, keys)), "".join(map(str, keys[:1]))
        for key, value in reversed(list(settings.items())):
            if key not in GROUPS and f"{dotted}.".startswith(f"{key}."):
                return f"{key}={value}"
        files = {_file(group, chosen[group]): group for group in ("scale", top) if keys and group in GROUPS}
        for path, group in {**files, paths.CONFIG / "config.yaml": ""}.items():
            shared = group != top or path.read_text(encoding="utf-8").startswith("# @package _global_")
            if line := load(path).line(keys if shared else keys[1:]):
                return f"{path}:{line}"
        return "the configuration"

    return origin


def check_override(text: str) -> None:
    """Raise UserError for a key or an option of a group that does not exist, and a value that reads what lies outside;
    keys below `objective` and `data.tasks` their owners check."""
    key, value = _split(text)
    check_inside(value.replace("\\", ""), Location(lambda _: text))  # Hydra takes some backslashes away
    if key in GROUPS:
        if value not in options(key) and not own_files.is_own(key, value):
            labels = row.labels() if key == "objective" else None
            error = unknown_name(f"{key} option", value, options(key), where=text, labels=labels)
            alternatives = {
                "data": "a file of problems (FILE.csv, .jsonl, .parquet …) or ORG/NAME:SPLIT of the hub",
                "model": "a folder, or a hub id like Qwen/Qwen2.5-7B",
            }
            raise UserError(error.what, where=text, fix="; or ".join(filter(None, (error.fix, alternatives.get(key)))))
        return
    if key == "objective.name":
        raise UserError("an objective's name is that of its file", where=text, fix="objective=NAME chooses one")
    if key == "data.tasks":
        what = "data.tasks as a whole would be added to the mix that is there"
        raise UserError(what, where=text, fix="set weights one by one: data.tasks.add4=0")
    below = key.startswith(("objective.", "data.tasks.", "data.fields.")) or re.fullmatch(
        r"data\.reward\.\w+\.(weight|function)", key
    )
    if not below and key not in _leaves():
        if (filter_name := key.rpartition(".")[2]) in ("min_p", "top_k", "top_p"):
            what = f"training draws from the whole policy: with {filter_name} responses would come from another "
            what += "distribution than the one whose ratio, KL and entropy an objective computes"
            fix = (
                f"leave it out; for measuring it is a part of a benchmark's name: data.benchmarks=[NAME:{filter_name}…]"
            )
            raise UserError(what, where=text, fix=fix)
        error, section = unknown_name("configuration key", key, _leaves(), where=text), key.partition(".")[0]
        if section in get_args(TrackerName):
            beside = ", ".join(leaf for leaf in _leaves() if leaf.startswith("tracking.") and leaf != "tracking.to")
            error = UserError(error.what, where=text, fix=f"did you mean tracking.to=[{section}]? beside it: {beside}")
        raise error


def check_inside(value: Any, at: Location) -> None:
    """Raises UserError naming the place of a string, in mappings and lists too, whose `${…}` reads what lies outside,
    as `${oc.env:HF_TOKEN}` does: the value would be stored with every run, in its card and on the page. References
    to the configuration's own values, and `oc.select`, which reads them too, are taken."""
    parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, inner in parts:
        check_inside(inner, at.at(key if isinstance(key, int) else str(key)))
    # no colon, which ends the name of what resolves it, and no reference within one, which could be that name
    if isinstance(value, str) and (match := _RESOLVED.search(value.replace("${oc.select:", "${oc.select,"))):
        what = f"{match[0]}…}} reads what lies outside the configuration, and what it reads would be stored"
        raise at.error(what, fix="write the value; secrets stay in the environment, where their readers look")


@cache
def _types() -> dict[str, Any]:
    """Dotted key of the schema -> its type, so that defaults left out of the YAML can be set too."""
    types: dict[str, Any] = {}
    for name, kind in get_type_hints(RunConfig).items():
        below = {f"{name}.{leaf}": of for leaf, of in get_type_hints(kind).items()} if is_dataclass(kind) else {}
        types |= below or {name: kind}
    return types


def is_text(key: str) -> bool:
    """Tell whether the value of a key is text, which is taken as it is typed: to Hydra 12e4567 is a number, and a comma
    or a # syntax."""
    other_schema = key == "data.reward" or _FUNCTION.fullmatch(key)  # other schemas have these
    return bool(other_schema) or _types().get(key) in (str, str | None)


def number_kind(key: str) -> type[int] | type[float] | None:
    """What number the value of a key is, if any; constants of objectives may be any."""
    kinds: dict[Any, type[int] | type[float]] = {int: int, int | None: int, float: float, float | None: float}
    return float if key.startswith("objective.") else kinds.get(_types().get(key))


def _value(key: str, text: str) -> Any:
    """Value of an override. Text, in a list too, is what was typed, or what is in the quotes that are all around it;
    anything else is read by Hydra's grammar. Raises UserError for what that cannot read."""
    several = key == "data.reward" and (text[:1] == "{" or text == "null")  # rewards by their names, or none
    if is_text(key) and not several:
        return None if _types().get(key) == str | None and text.lower() == "null" else _text(text)
    if _types().get(key) == list[str] and text[:1] == "[" and text[-1:] == "]":
        items = [match[1] for match in _ITEM.finditer(text[1:-1].strip()) if match[0]]
        return [_text(item) for item in items]
    try:
        parsed = _parsed(f"++{key}={text}")
    except Exception:  # Hydra raises many kinds, and its messages are those of a parser
        if text[:1] not in ("[", "{"):
            return text  # which its type refuses with a sentence
        fix = f"close all brackets, and put text with other characters than letters, digits and ._-/: {_IN_QUOTES}"
        raise UserError(f"{text} is no list or mapping that can be read", where=f"{key}={text}", fix=fix) from None
    if parsed.is_sweep_override():
        fix = "`tepo train` runs them as a sweep; a study has `vary:` and --seeds; a decimal point is no comma"
        raise UserError(f"{text} lists several values, and a run has one", where=f"{key}={text}", fix=fix)
    return copy.deepcopy(parsed.value())


def _text(text: str) -> str:
    return str(_parsed(f"++key={text.strip()}").value()) if _QUOTED.fullmatch(text.strip()) else text


def _check_text(plain: Mapping[str, Any], at: Location) -> None:
    """Raise UserError for text that a YAML file has without quotes, and YAML takes for a number or a truth value."""
    for key, several in _texts().items():
        section, _, leaf = key.rpartition(".")
        around = plain.get(section) if section else plain
        value = around.get(leaf) if isinstance(around, Mapping) else None
        for scalar in [value] if not several else value if isinstance(value, list) else []:
            if isinstance(scalar, int | float):
                what = f"{key} is text, and YAML reads what is written there as {scalar!r}"
                raise at.at(*key.split(".")).error(what, fix="put it in quotes")


@cache
def _texts() -> dict[str, bool]:
    """Dotted keys whose values are text (False), or lists of it (True)."""
    return {key: kind == list[str] for key, kind in _types().items() if kind == list[str] or is_text(key)}


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Any:
    """An override as Hydra's grammar reads it."""
    return _parser().parse_override(text)


@cache
def _parser() -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()


def _leaves() -> list[str]:
    """Dotted keys that can be set, the groups included."""
    return [*GROUPS, *(key for key in _types() if key not in GROUPS)]


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Plain nested dictionaries, as saved beside a run."""
    return asdict(config)
