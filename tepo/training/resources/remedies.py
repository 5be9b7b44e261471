"""Overrides under which a run that does not fit on its GPUs would."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tepo.common.errors import UserError
from tepo.config.run_config import RunConfig
from tepo.sampling.backends import sampler_backend, sampler_kinds
from tepo.training.resources.layout import LAYOUT, fill, lacking
from tepo.training.resources.memory import Gpus, memory
from tepo.training.run import Run

NONE = "take more or larger GPUs, or train adapters (engine=torch model.lora_rank=32)"  # where no override helps


def obstacle(run: Run, gpus: Gpus) -> str:
    """What stands against a run that leaves nothing open, ranks and settings first; empty where it fits."""
    try:
        run.check_ranks(gpus.ranks)
    except UserError as error:
        return error.what
    return next((sentence for lacks, sentence in lacking(run, gpus, memory(run, gpus)) if lacks > 0), "")


def changes(run: Run, gpus: Callable[[Run], Gpus]) -> tuple[str, ...] | None:
    """The first set of overrides under which the run fits, the layout as it is then chosen; None where there is none.
    gpus: those of a run, as another engine may take more of them."""
    for words in _remedies(run):
        other = Run(changed(run.config, words), run, run.sizes)
        other, _ = fill(other, gpus(other))
        if not obstacle(other, gpus(other)):
            return _as_chosen(words, run, other)
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


def _remedies(run: Run) -> Iterator[tuple[str, ...]]:
    """Overrides that save memory, alone and together, so that the costliest in time of each set is as cheap as can be;
    at last a sampler on other GPUs."""
    # another layout than the one that is given first: it changes no result
    open_layout = " ".join(f"{key}=null" for key in LAYOUT if run.get(key) is not None)
    sets: list[tuple[str, ...]] = [()]  # in the order of binary numbers whose last digit is the first remedy
    for remedy in filter(None, [open_layout, *run.engine.remedies(run.config)]):
        sets += [(*words, *remedy.split()) for words in sets]
    for words in sets:
        if words:
            yield words
        for remedy in run.sampler.remedies(run.config):
            yield (*words, *remedy.split())
    for kind in sampler_kinds():
        if sampler_backend(kind).remote:
            yield from ((*words, f"sampler.kind={kind}") for words in sets)


def _as_chosen(words: Sequence[str], original: Run, filled: Run) -> tuple[str, ...]:
    """The overrides with what `filled` has where they leave the layout open, without what was asked anyway."""
    chosen = []
    for word in words:
        key, _, value = word.partition("=")
        if key in LAYOUT and value == "null":
            if filled.get(key) != original.get(key):
                chosen.append(f"{key}={str(filled.get(key)).lower()}")
        else:
            chosen.append(word)
    return tuple(chosen)
