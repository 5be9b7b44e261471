"""From overrides to a checked RunConfig: Hydra composes, the strict reader checks,
and an unknown name gets the nearest valid one."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

from tepo import paths
from tepo.config import estimator, own
from tepo.config.schema import RunConfig
from tepo.errors import UserError, unknown_name
from tepo.strict import Keys, Location, load, read

FOLDER = Path(__file__).parent
GROUPS = ("objective", "model", "scale", "data", "sampler", "engine")
_PATHS = (
    "store",
    "model.path",
    "data.base",
    "data.problems",
)  # taken as they are: to Hydra a ~, a comma or a bracket is syntax


def options(group: str) -> list[str]:
    """Names of a group's YAML files; one that begins with _ stands for something else (`own`)."""
    return sorted(path.stem for path in (FOLDER / group).glob("[!_]*.yaml"))


def compose(overrides: Sequence[str] = ()) -> RunConfig:
    """Compose and check a configuration.

    Raises UserError for a malformed override, an unknown key or group option, a wrong type or a value out of bounds.
    """
    for text in overrides:
        check_override(text)
    given = dict(map(_split, overrides))
    plain = _composed(given)
    plain["objective"]["name"] = _choices(given)["objective"]
    at = Location(_origin(given))
    config = read(RunConfig, plain, at)
    config.store = os.path.expanduser(config.store)
    config.objective = estimator.resolved(config.objective, config.train.kl_estimator, given.items())
    _check_names(config, at)
    return config


def _composed(given: Mapping[str, str]) -> dict[str, Any]:
    """What Hydra makes of the overrides, a user's own problems and model among them (`tepo.config.own`)."""
    from omegaconf import OmegaConf

    words = own.with_options(given, {group: options(group) for group in own.LEAF})
    with _hydra() as hydra_compose:

        def made(words: Mapping[str, str]) -> Any:
            composed = hydra_compose("config", [_word(*pair) for pair in words.items()])
            return OmegaConf.to_container(composed, resolve=True)

        try:
            plain = made(words)
            if own.implied_data(words, plain["data"]):
                plain = made(words | {"data": own.OPTION})
        except UserError:
            raise
        except Exception as error:  # Hydra raises many kinds; its first line says what was wrong
            raise _not_composed(error, words) from None
    own.settle(words, plain)
    return plain


def _not_composed(error: Exception, words: Mapping[str, str]) -> UserError:
    """The mistake that stopped Hydra: a file of a group that is no YAML, or an override that it cannot parse."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    for _, path in _files(words):
        load(path)
    broken = []
    for key, value in words.items():
        try:
            OverridesParser.create().parse_override(_word(key, value))
        except Exception:
            broken.append(f"{key}={value}")
    where = broken or [f"{key}={value}" for key, value in words.items()]
    return UserError(str(error).splitlines()[0], where=" ".join(where), fix="see `tepo train --help`")


@contextlib.contextmanager
def _hydra() -> Iterator[Any]:
    """Hydra's compose over our folder, with its global state put back."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(FOLDER), version_base="1.3"):
        yield hydra_compose


def _split(text: str) -> tuple[str, str]:
    """`key=value` without Hydra's leading `+`."""
    key, equals, value = text.partition("=")
    key = key.lstrip("+").strip()
    if not equals or not re.fullmatch(r"[\w.]+", key):
        raise UserError(
            f"not an override: {text!r}", fix="write key=value, for example train.steps=40 or objective=gspo"
        )
    return key, value


@cache
def _defaults(path: Path) -> dict[str, str]:
    """Group -> option, as a file's `defaults:` list chooses them."""
    entries = [entry for entry in load(path).data.get("defaults", ()) if isinstance(entry, dict)]
    return {key.removeprefix("override /"): value for entry in entries for key, value in entry.items()}


def _choices(words: Mapping[str, str]) -> dict[str, str]:
    """The option of each group: the override, else what the scale chooses, else the default in config.yaml."""
    default = _defaults(FOLDER / "config.yaml")
    scale = _defaults(FOLDER / "scale" / f"{words.get('scale', default['scale'])}.yaml")
    chosen = {**default, **scale, **words}
    return {group: chosen[group] for group in GROUPS}


def _files(words: Mapping[str, str]) -> list[tuple[str, Path]]:
    """The files a configuration is composed of with their groups, the one that wins first."""
    chosen = _choices(words)
    files = [(group, FOLDER / group / f"{chosen[group]}.yaml") for group in ("scale", *reversed(GROUPS))]
    return [(group, path) for group, path in files if path.is_file()] + [("", FOLDER / "config.yaml")]


def _origin(given: Mapping[str, str]) -> Callable[[Keys], str]:
    """Says of a key which override set it, else which file and line."""

    def origin(keys: Keys) -> str:
        dotted = ".".join(map(str, keys))
        for key, value in reversed(list(given.items())):
            if key not in GROUPS and f"{dotted}.".startswith(f"{key}."):
                return f"{key}={value}"
        for group, path in _files(given):
            top = keys[:1] == (group,) and not path.read_text(encoding="utf-8").startswith("# @package _global_")
            inside = keys[1:] if top else keys
            if (group in ("", "scale", *keys[:1])) and (line := load(path).line(inside)):
                return f"{path}:{line}"
        return "the configuration"

    return origin


def check_override(text: str) -> None:
    """Raise UserError for a key or an option of a group that does not exist;
    keys below `objective` and `data.tasks` their owners check."""
    key, value = _split(text)
    if key in GROUPS:
        if value not in options(key) and not own.is_own(key, value):
            raise _unknown_option(key, value, text)
        return
    if key == "objective.name":
        raise UserError("an objective's name is that of its file", where=text, fix="objective=NAME chooses one")
    if key == "data.tasks":
        raise UserError(
            "data.tasks as a whole would be added to the mix that is there",
            where=text,
            fix="set weights one by one: data.tasks.add4=0",
        )
    if not key.startswith(("objective.", "data.tasks.")) and key not in _leaves():
        raise unknown_name("configuration key", key, _leaves(), where=text)


def _unknown_option(key: str, value: str, text: str) -> UserError:
    error = unknown_name(f"{key} option", value, options(key), where=text)
    places = {"data": "a file of problems, FILE.jsonl", "model": "a folder, or a hub id like Qwen/Qwen2.5-7B"}
    return UserError(error.what, where=text, fix=f"{error.fix}; or {places[key]}" if key in places else error.fix)


def _word(key: str, value: str) -> str:
    """The override as Hydra should get it."""
    if key in GROUPS:
        return f"{key}={value}"
    if key in _PATHS and value and value[0] not in "'\"":
        value = "'" + value.replace("'", r"\'") + "'"
    return f"++{key}={value}"


def _leaves() -> list[str]:
    """Dotted keys of the schema, the groups included, so that defaults left out of the YAML can be set too."""
    names = list(GROUPS)
    for part in fields(RunConfig):
        if isinstance(part.type, type) and hasattr(part.type, "__dataclass_fields__"):
            names += [f"{part.name}.{leaf.name}" for leaf in fields(part.type)]
        elif part.name not in GROUPS:
            names.append(part.name)
    return names


def _check_names(config: RunConfig, at: Location) -> None:
    """What is named must be there."""
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


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Plain nested dictionaries, as saved beside a run."""
    return asdict(config)
