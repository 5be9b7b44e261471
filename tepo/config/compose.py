"""From overrides to a checked RunConfig: Hydra composes, the schema checks,
and an unknown name gets the nearest valid one."""

import contextlib
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from tepo import paths
from tepo.config import estimator, own
from tepo.config.schema import RunConfig
from tepo.errors import UserError, unknown_name

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

    Raises UserError for a malformed override, an unknown key or group option, a wrong type.
    """
    from omegaconf import OmegaConf, errors

    plain: dict[Any, Any] = _composed(overrides)
    plain["objective"]["name"] = _group_choice("objective", overrides)
    objective = plain.pop("objective")
    try:
        typed = OmegaConf.merge(OmegaConf.structured(RunConfig), {**plain, "objective": objective})
        config = OmegaConf.to_object(typed)
    except errors.OmegaConfBaseException as error:
        key = getattr(error, "full_key", "") or "?"
        if "is not a ListConfig" in str(error):
            raise UserError(f"{key} is a list", where=" ".join(overrides), fix=f"'{key}=[first,second]'") from None
        raise UserError(
            str(error).splitlines()[0], where=f"configuration key {key}", fix="check the value's type"
        ) from None
    assert isinstance(config, RunConfig)
    config.store = os.path.expanduser(config.store)
    config.objective = estimator.resolved(config.objective, config.train.kl_estimator, map(_split, overrides))
    _check_values(config)
    return config


def _composed(overrides: Sequence[str]) -> dict[str, Any]:
    """What Hydra makes of the overrides, a user's own problems and model among them (`tepo.config.own`)."""
    from omegaconf import OmegaConf

    for text in overrides:
        check_override(text)
    words = own.with_options(dict(map(_split, overrides)), {group: options(group) for group in own.LEAF})
    with _hydra() as hydra_compose:

        def made(words: dict[str, str]) -> Any:
            return OmegaConf.to_container(
                hydra_compose("config", [_word(*pair) for pair in words.items()]), resolve=True
            )

        try:
            plain = made(words)
            if own.implied_data(words, plain["data"]):
                plain = made(words | {"data": own.OPTION})
        except UserError:
            raise
        except Exception as error:  # Hydra raises many kinds; its first line says what was wrong
            raise UserError(
                str(error).splitlines()[0], where=" ".join(overrides), fix="see `tepo train --help`"
            ) from None
    own.settle(words, plain)
    return plain


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


def _group_choice(group: str, overrides: Sequence[str]) -> str:
    """The option of a group: the last override, else the default in config.yaml."""
    chosen = [value for key, value in map(_split, overrides) if key == group]
    default = re.search(rf"^  - {group}: (\S+)$", (FOLDER / "config.yaml").read_text(encoding="utf-8"), re.MULTILINE)
    assert default
    return chosen[-1] if chosen else default.group(1)


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


def _check_values(config: RunConfig) -> None:
    """Values that no type can check."""
    train = config.train
    positive = (
        "steps",
        "prompts_per_step",
        "samples_per_prompt",
        "max_rounds",
        "max_new_tokens",
        "max_prompt_tokens",
        "mini_batch_prompts",
        "epochs",
        "checkpoint_every",
    )
    for name in positive:
        if getattr(train, name) < 1:
            raise UserError(f"train.{name} must be at least 1, not {getattr(train, name)}")
    if train.samples_per_prompt < 2:
        raise UserError("train.samples_per_prompt must be at least 2: a group of one has no advantage")
    if not 0 < train.learning_rate < math.inf or not train.grad_clip > 0:
        raise UserError("train.learning_rate and train.grad_clip must be positive")
    if not 0 < train.temperature < math.inf:
        raise UserError("train.temperature must be positive: greedy groups are all alike")
    limits = {
        "seed": (config.seed, 0),
        "train.warmup_steps": (train.warmup_steps, 0),
        "train.weight_decay": (train.weight_decay, 0),
        "train.token_dump_every": (train.token_dump_every, 0),
        "grader.workers": (config.grader.workers, 0),
    }
    limits |= {
        "sampler.max_rows": (config.sampler.max_rows, 1),
        "engine.micro_batch_tokens": (config.engine.micro_batch_tokens, 1),
    }
    for key, (number, least) in limits.items():
        if not least <= number < math.inf:
            raise UserError(f"{key} must be at least {least}, not {number}")
    for key, share in (
        ("sampler.gap_bound", config.sampler.gap_bound),
        ("sampler.memory_fraction", config.sampler.memory_fraction),
    ):
        if share is not None and not 0 < share < math.inf:
            raise UserError(f"{key} must be positive, not {share:g}")
    if config.seed >= 2**63:
        raise UserError(f"seed must be below 2^63, not {config.seed}")
    if not config.store:
        raise UserError("store is empty", fix="name a folder: --store runs")
    if config.data.kind == "problems" and not config.data.problems:
        raise UserError(
            "data.kind=problems names no problems",
            where="data.problems",
            fix="data=FILE.jsonl, data=dapo, or data.problems=NAME",
        )
    for name in config.data.benchmarks:
        paths.find("evals", name.partition(":")[0])
    for key, value, valid in (
        ("model.dtype", config.model.dtype, ("float32", "bfloat16")),
        ("model.wrap", config.model.wrap, ("raw", "auto", "base")),
        ("data.prompt", config.data.prompt, ("raw", "boxed")),
        ("data.kind", config.data.kind, ("procedural", "problems")),
        ("data.overlong_prompts", config.data.overlong_prompts, ("drop", "truncate", "error")),
        ("sampler.kind", config.sampler.kind, options("sampler")),
        ("engine.kind", config.engine.kind, options("engine")),
        ("engine.device", config.engine.device, ("auto", "cpu", "cuda")),
        ("wandb.mode", config.wandb.mode, ("disabled", "offline", "online")),
    ):
        if value not in valid:
            raise unknown_name(key, str(value), valid)


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Plain nested dictionaries, as saved beside a run."""
    return asdict(config)
