"""Memory, time and cost of paper-scale runs as tables. Imported when a plan is printed."""

from collections.abc import Iterable

from rich.table import Table

from tepo.config.compose import to_dict
from tepo.config.schema import RunConfig
from tepo.studies.fit import Fit, fit, needs_reference
from tepo.studies.machines import ASSUMPTIONS, machines
from tepo.studies.memory import GIB
from tepo.studies.plan import Unit
from tepo.training.engines import engine_backend
from tepo.words import setting_text
from tepo_cli.screen import fixed, say_wrapped, show

_PARTS = ("weights", "reference", "gradients", "optimiser", "activations", "logits")
_DEVICE = ("model", "sampler", "engine", "train")  # the sections that memory and time depend on
_FREE = ("learning_rate", "warmup_steps", "weight_decay", "adam_beta2", "grad_clip")  # but not on these of `train`


def show_fits(units: Iterable[Unit]) -> None:
    """One table for each model and setting in a plan; rows that take the same share one."""
    groups: dict[tuple[str, bool], list[Unit]] = {}
    for unit in units:
        if unit.row.objective is not None:
            groups.setdefault((_takes(unit.config), needs_reference(unit.config)), []).append(unit)
    settings = [_settings(alike) for alike in groups.values()]
    every = {one for some in settings for one in some}
    for alike, some in zip(groups.values(), settings, strict=True):
        show_fit(alike[0].config, "" if set(some) == every else "; ".join(some))


def _settings(units: Iterable[Unit]) -> list[str]:
    return list(dict.fromkeys(setting_text(unit.row.setting.point) for unit in units))


def _takes(config: RunConfig) -> str:
    """What memory and time go by."""
    parts = {section: to_dict(config)[section] for section in _DEVICE}
    return str(parts | {"train": {key: value for key, value in parts["train"].items() if key not in _FREE}})


def show_fit(config: RunConfig, settings: str = "") -> None:
    """GiB of each GPU by part, seconds of a step and dollars of the run, on every machine; under the table what does
    not fit and what would help. settings: of a sweep, those that it holds for, where others take something else."""
    reference = needs_reference(config)
    fits = [
        fit(config, machine, reference=reference)
        for machine in machines()
        if machine.ranks == 1 or engine_backend(config.engine.kind).several_ranks
    ]
    title = (
        f"{config.model.name}{', with a frozen reference policy' if reference else ''}"
        f"{f', {settings}' if settings else ''}: "
        f"GiB of each GPU, seconds a step, dollars of {config.train.steps} steps"
    )
    table = Table(*map(fixed, ("machine", *_PARTS, "all", "sampler", "cache", "sampling", "of", "s", "$")), title=title)
    for one in fits:
        table.add_row(one.machine.name, *_figures(one, config.train.steps))
    show(table, stderr=True)
    for one in fits:
        if one.problem:
            say_wrapped(f"{one.machine.name}: does not fit, {one.problem}. {_remedy(one)}")
    prices = ", ".join(
        f"{gpu} {price}" for gpu, price in sorted({(one.machine.gpu, one.machine.price) for one in fits})
    )
    say_wrapped(f"{ASSUMPTIONS}; $ a GPU-hour: {prices}")
    say_wrapped(
        "all: the peak of the updates, with 1.5 GiB of CUDA; "
        "sampler: its share, of which cache is left for keys and values; sampling: with what the trainer keeps"
    )


def _figures(one: Fit, steps: int) -> list[str]:
    memory = one.memory
    parts = [getattr(memory, part) for part in _PARTS]
    sizes = [*parts, memory.updating, memory.sampler, memory.cache, memory.sampling, one.machine.bytes]
    cells = [f"{size / GIB:.1f}" if size else "–" for size in sizes]
    return [*cells, *(["no", "no"] if one.problem else [f"{one.time.total:.0f}", f"{one.cost(steps):.0f}"])]


def _remedy(one: Fit) -> str:
    if one.changes is None:
        return "No setting of memory alone makes it fit: take more or larger GPUs."
    return (
        "It would with "
        + " ".join(one.changes)
        + (", servers on other GPUs" if any(word.startswith("sampler.kind=") for word in one.changes) else "")
        + "".join(f"; {words}" for words in one.savings)
    )
