"""Units of a study that one process does: trained ones that only lack benchmarks, and that one engine can measure."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tepo.common.files import content_hash
from tepo.sampling.backends import sampler_backend
from tepo.studies.plan import Unit

Batch = tuple[Unit, ...]
"""Units that a process does one after another."""


def batches(units: Sequence[Unit], jobs: int) -> list[Batch]:
    """Every unit in a batch, in order. Those that can share an engine are dealt to at most `jobs` batches; any other
    unit is a batch by itself."""
    sharing: dict[str, list[int]] = {}
    chosen: list[list[int]] = []  # indices of units
    for index, unit in enumerate(units):
        engine = _engine(unit)
        if engine is None:
            chosen.append([index])
        else:
            sharing.setdefault(engine, []).append(index)
    chosen += [group[part::jobs] for group in sharing.values() for part in range(min(jobs, len(group)))]
    return [tuple(units[index] for index in batch) for batch in sorted(chosen)]


def _engine(unit: Unit) -> str | None:
    """A hash of what an engine must be to measure the unit. None where it is still to be trained, or where its sampler
    loads no engine: the embedded one, and servers, which go on from process to process."""
    config, backend = unit.config, sampler_backend(unit.config.sampler.kind)
    if unit.tuning or not unit.trained() or backend.shares_weights or backend.remote:
        return None
    model, train = asdict(config.model), config.train
    for name in ("lora_rank", "lora_alpha", "gradient_checkpointing"):  # of the training: what is measured is merged
        del model[name]
    parts: list[Any] = [model, asdict(config.sampler), config.engine.device, config.data.benchmarks]
    return content_hash([*parts, train.max_prompt_tokens, train.max_new_tokens])


def batch_command(batch: Batch) -> list[str]:
    """The command line that measures several units; a person can type it too."""
    runs = [shlex.join([_kind(unit), *unit.as_typed()]) for unit in batch]
    return [sys.executable, "-m", "tepo_cli", "measure", "--quiet", "--store", str(batch[0].folder.parent), *runs]


def _kind(unit: Unit) -> str:
    return "base" if unit.row.objective is None else "train"
