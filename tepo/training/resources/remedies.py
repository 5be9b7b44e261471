"""Overrides under which a run that does not fit on its GPUs would."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tepo.common.errors import UserError
from tepo.config.run_config import RunConfig
from tepo.policy.model.shapes import Shape
from tepo.sampling.backends import sampler_backend, sampler_kinds
from tepo.training.engine.backends import engine_backend
from tepo.training.resources.layout import LAYOUT, fill, get, lacking
from tepo.training.resources.memory import Gpus, memory

NONE = "take more or larger GPUs, or train adapters (engine=torch model.lora_rank=32)"  # where no override helps


def obstacle(config: RunConfig, shape: Shape, gpus: Gpus, reference: bool) -> str:
    """What stands against a run that leaves nothing open, ranks and settings first; empty where it fits."""
    try:
        engine_backend(config.engine.kind).check_settings(config, gpus.ranks)
        sampler_backend(config.sampler.kind).check_settings(config, gpus.ranks)
    except UserError as error:
        return error.what
    needed = memory(config, shape, gpus, reference=reference)
    return next((sentence for lacks, sentence in lacking(config, shape, gpus, needed) if lacks > 0), "")


def changes(
    config: RunConfig, shape: Shape, gpus: Callable[[RunConfig], Gpus], reference: bool
) -> tuple[str, ...] | None:
    """The first set of overrides under which the run fits, the layout as it is then chosen; None where there is none.
    gpus: those of a configuration, as another engine may take more of them."""
    for words in _remedies(config):
        other = changed(config, words)
        other, _ = fill(other, shape, gpus(other), reference)
        if not obstacle(other, shape, gpus(other), reference):
            return _as_chosen(words, config, other)
    return None


def changed(config: RunConfig, words: Sequence[str]) -> RunConfig:
    """The configuration with `section.key=value` overrides."""
    for word in words:
        name, _, text = word.partition("=")
        section, _, key = name.partition(".")
        old = getattr(config, section)
        value: Any = {"true": True, "false": False, "null": None}.get(text, text)
        before = getattr(old, key)
        if isinstance(value, str):
            value = int(value) if before is None else type(before)(value)
        config = replace(config, **{section: replace(old, **{key: value})})
    return config


def _remedies(config: RunConfig) -> Iterator[tuple[str, ...]]:
    """Overrides that save memory, alone and together, so that the costliest in time of each set is as cheap as can be;
    at last a sampler on other GPUs."""
    # another layout than the one that is given first: it changes no result
    open_layout = " ".join(f"{key}=null" for key in LAYOUT if get(config, key) is not None)
    sets: list[tuple[str, ...]] = [()]  # in the order of binary numbers whose last digit is the first remedy
    for remedy in filter(None, [open_layout, *engine_backend(config.engine.kind).remedies(config)]):
        sets += [(*words, *remedy.split()) for words in sets]
    for words in sets:
        if words:
            yield words
        for remedy in sampler_backend(config.sampler.kind).remedies(config):
            yield (*words, *remedy.split())
    for kind in sampler_kinds():
        if sampler_backend(kind).remote:
            yield from ((*words, f"sampler.kind={kind}") for words in sets)


def _as_chosen(words: Sequence[str], original: RunConfig, config: RunConfig) -> tuple[str, ...]:
    """The overrides with what `config` has where they leave the layout open, without what was asked anyway."""
    chosen = []
    for word in words:
        key, _, value = word.partition("=")
        if key in LAYOUT and value == "null":
            if get(config, key) != get(original, key):
                chosen.append(f"{key}={str(get(config, key)).lower()}")
        else:
            chosen.append(word)
    return tuple(chosen)
