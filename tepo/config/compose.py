"""From overrides to a checked RunConfig: Hydra composes, the strict reader checks,
and an unknown name gets the nearest valid one."""

import contextlib
import copy
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tepo.common import paths
from tepo.common.errors import UserError, unknown_name
from tepo.common.kl_estimators import DEFAULT
from tepo.common.paths import GROUPS
from tepo.common.plugin_files import read_kind_files
from tepo.common.schema import Keys, Location, read
from tepo.config import own_files
from tepo.config.own_reward import read_prompt, read_rewards
from tepo.config.run_config import RunConfig

# taken as they are: to Hydra a ~, a comma or a bracket is syntax
_PATHS = ("store", "model.path", "data.base", "data.problems", "data.prompt", "data.reward", "objective.kinds")


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
    words = own_files.with_options(given, {group: options(group) for group in own_files.LEAF})
    try:
        plain, chosen = _made(words)
        if own_files.implied_data(words, plain["data"]):
            plain, chosen = _made(words | {"data": own_files.OPTION})
    except UserError:
        raise
    except Exception as error:  # Hydra raises many kinds; its first line says what was wrong
        raise _not_composed(error, words) from None
    plain.pop("studies", None)  # of a scale: tepo.studies.scales
    own_files.settle(words, plain)
    plain["objective"]["name"] = chosen["objective"]
    at = Location(_origin(given, chosen))
    if "kinds" in plain["objective"]:
        folder = Path() if "objective.kinds" in given else _file("objective", chosen["objective"]).parent
        named = plain["objective"]["kinds"]
        plain["objective"]["kinds"] = read_kind_files(named, folder, at.at("objective", "kinds"))
    data = plain["data"]
    for leaf, reader in (("reward", read_rewards), ("prompt", read_prompt)):
        if leaf in data:
            folder = Path() if f"data.{leaf}" in given else _file("data", chosen["data"]).parent
            data[leaf] = reader(data[leaf], folder, at.at("data", leaf))
    config = read(RunConfig, plain, at)
    config.store = os.path.expanduser(config.store)
    estimator = config.train.kl_estimator or DEFAULT
    for key, value in given.items():
        if estimator != DEFAULT and key.startswith("objective.penalty") and re.search(rf"\b{DEFAULT}\b", value):
            what = f"train.kl_estimator={estimator} takes the place of {DEFAULT}"
            raise UserError(what, where=f"{key}={value}", fix="add train.kl_estimator=null")
    if "penalty" in config.objective:
        config.objective["penalty"] = _with_estimator(config.objective["penalty"], estimator)
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


def _with_estimator(penalty: Any, estimator: str) -> Any:
    """A penalty, or a list of them, with the estimator of every KL written out, `train.kl_estimator` in the place of
    k3: what is saved and shown is what the loss is computed with."""
    if isinstance(penalty, list):
        return [_with_estimator(part, estimator) for part in penalty]
    if penalty == "kl":
        return {"kind": "kl", "estimator": estimator}
    if isinstance(penalty, Mapping) and penalty.get("kind") == "kl" and penalty.get("estimator", DEFAULT) == DEFAULT:
        return {**penalty, "estimator": estimator}
    return penalty


def _not_composed(error: Exception, words: Mapping[str, str]) -> UserError:
    """The mistake that stopped Hydra: a file of a group that is no YAML, or an override that it cannot parse."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from tepo.common.schema.document import load

    for path in (paths.CONFIG / "config.yaml", *(path for group in GROUPS for path in paths.files(group).values())):
        load(path)
    broken = []
    for key, value in words.items():
        try:
            OverridesParser.create().parse_override(_word(key, value))
        except Exception:
            broken.append(f"{key}={value}")
    where = broken or [f"{key}={value}" for key, value in words.items()]
    return UserError(str(error).splitlines()[0], where=" ".join(where), fix="see `tepo train --help`")


def _made(words: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Compose the options of groups with Hydra, kept while no file of theirs changes, and put the other overrides in as
    Hydra does: composing takes a tenth of a second, and a study has hundreds of rows with the same options."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    parsed = OverridesParser.create().parse_overrides([_word(*pair) for pair in words.items()])
    groups = tuple(f"{key}={value}" for key, value in words.items() if key in GROUPS)
    files = [path for group in GROUPS for path in paths.files(group).values()]
    config, chosen = _options(groups, tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in files))
    config = copy.deepcopy(config)
    for override in parsed:
        if override.key_or_group not in GROUPS:
            key = override.key_or_group
            OmegaConf.update(config, key, override.value(), merge=key != "data.reward", force_add=True)
    plain: Any = OmegaConf.to_container(config, resolve=True)
    return plain, dict(chosen)


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


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Our groups; with options of a user's own, a folder of links to the files that win."""
    there = {group: paths.files(group) for group in GROUPS}
    if all(path.is_relative_to(paths.CONFIG) for files in there.values() for path in files.values()):
        yield paths.CONFIG
        return
    with tempfile.TemporaryDirectory(prefix="tepo-") as name:
        folder = Path(name)
        (folder / "config.yaml").symlink_to(paths.CONFIG / "config.yaml")
        for group, files in there.items():
            (folder / group).mkdir()
            for path in (*(paths.CONFIG / group).glob("_*.yaml"), *files.values()):
                (folder / group / path.name).symlink_to(path.absolute())
        yield folder


def _split(text: str) -> tuple[str, str]:
    """`key=value` without Hydra's leading `+`."""
    key, equals, value = text.partition("=")
    key = key.lstrip("+").strip()
    if not equals or not re.fullmatch(r"[\w.]+", key):
        fix = "write key=value, for example train.steps=40 or objective=gspo"
        raise UserError(f"not an override: {text!r}", fix=fix)
    return key, value


def _origin(given: Mapping[str, str], chosen: Mapping[str, str]) -> Callable[[Keys], str]:
    """Says of a key which override set it, else which line of which file; `chosen`: the option of each group."""

    def origin(keys: Keys) -> str:
        from tepo.common.schema.document import load

        dotted, top = ".".join(map(str, keys)), "".join(map(str, keys[:1]))
        for key, value in reversed(list(given.items())):
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


def check_inside(value: Any, at: Location) -> None:
    """Raises UserError naming the place of a string, in mappings and lists too, whose `${…}` reads what lies outside,
    as `${oc.env:HF_TOKEN}` does: the value would be stored with every run, in its card and on the page. References
    to the configuration's own values, and `oc.select`, which reads them too, are taken."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            check_inside(inner, at.at(str(key)))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            check_inside(inner, at.at(index))
    elif isinstance(value, str) and "${" in value:
        from omegaconf.errors import GrammarParseError
        from omegaconf.grammar.gen.OmegaConfGrammarParser import OmegaConfGrammarParser
        from omegaconf.grammar_parser import parse

        try:
            nodes: list[Any] = [parse(value)]
        except GrammarParseError:  # nothing is resolved then: OmegaConf says so
            return
        while nodes:
            node = nodes.pop()
            nodes += list(node.getChildren()) if hasattr(node, "getChildren") else []
            name = node.getText() if isinstance(node, OmegaConfGrammarParser.ResolverNameContext) else "oc.select"
            if name != "oc.select":
                what = f"${{{name}:…}} reads what lies outside the configuration, and what it reads would be stored"
                raise at.error(what, fix="write the value; secrets stay in the environment, where their readers look")


def _word(key: str, value: str) -> str:
    """The override as Hydra should get it."""
    if key in GROUPS:
        return f"{key}={value}"
    plain = key == "data.reward" and (value[:1] == "{" or value == "null")  # Hydra's grammar: several by name, or none
    if key in _PATHS and value and value[0] not in "'\"" and not plain:
        value = "'" + value.replace("'", r"\'") + "'"
    return f"++{key}={value}"


def _leaves() -> list[str]:
    """Dotted keys of the schema, the groups included, so that defaults left out of the YAML can be set too."""
    sections = {part.name: part.type for part in fields(RunConfig) if is_dataclass(part.type)}
    plain = [part.name for part in fields(RunConfig) if part.name not in {*sections, *GROUPS}]
    return [*GROUPS, *plain, *(f"{name}.{leaf.name}" for name, kind in sections.items() for leaf in fields(kind))]


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Plain nested dictionaries, as saved beside a run."""
    return asdict(config)
