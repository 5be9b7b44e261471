"""Memory, time, cost and disk of runs on GPUs. Imported when a plan of such is printed."""

from collections.abc import Iterable, Sequence

from rich.table import Table

from tepo.common.text import counted, setting_text
from tepo.config.run_config import RunConfig
from tepo.launch.local import unfinished
from tepo.planning.fit import Fit, fit, measured_peaks, needs_reference, takes
from tepo.planning.gpus import ASSUMPTIONS, chosen, machines, single_gpus
from tepo.planning.study_totals import card_hours, study_disk
from tepo.sampling.backends.vllm import ASLEEP, WORK
from tepo.studies.plan import Unit, unique
from tepo.training.engine.backends import engine_backend
from tepo.training.resources.memory import CONTEXT, FRAGMENTS, GIB
from tepo.training.resources.run_disk import CHECKPOINTS, GB, RunDisk, run_disk
from tepo_cli.screen import fixed, say_wrapped, show

_PARTS = ("weights", "reference", "gradients", "optimiser", "activations", "logits")
_PHASES = ("loading", "sampling", "syncing", "updating")
_ASSUMED = (
    f"Phases, with {CONTEXT / GIB:.1f} GiB of CUDA. loading: the weights, or a rank's shard and a tensor of them, then "
    "the optimiser's states. sampling: what the trainer keeps, and the sampler's share, of which weights and its own "
    f"work (vLLM: {WORK / GIB:.1f} GiB) leave the cache; refills share it. syncing: the share without the cache, and "
    "the largest tensor, gathered. updating: what the trainer keeps, gradients, the larger of activations with logits "
    f"and the optimiser's step, {FRAGMENTS:.0%} of these for fragments, and what the sampler does not give back (vLLM: "
    f"{ASLEEP / GIB:.1f} GiB)."
)
_COUNTS = (1, 4, 8)  # cards side by side


def show_fits(units: Iterable[Unit], card: str | None = None, gpus: int | None = None) -> None:
    """One table for each model and setting in a plan; rows that take the same share one. Under them, where a run takes
    one card, hours and dollars of the plan on several. card, gpus: on these machines alone."""
    units = list(units)
    groups: dict[tuple[str, bool], list[Unit]] = {}
    for unit in units:
        if unit.row.objective is not None:
            unit.as_typed()  # its objective is loaded
            groups.setdefault((takes(unit.config), needs_reference(unit.config)), []).append(unit)
    settings = [
        list(dict.fromkeys(setting_text(unit.row.setting.point) for unit in alike)) for alike in groups.values()
    ]
    every = {one for some in settings for one in some}
    for alike, some in zip(groups.values(), settings, strict=True):
        show_fit(alike[0].config, "" if set(some) == every else "; ".join(some), card, gpus)
        peaks = [found for unit in alike if (found := measured_peaks(unit.run.metrics()))]
        if peaks:
            said = ", ".join(f"{phase} {max(one[phase] for one in peaks):.1f} GiB" for phase in peaks[0])
            say_wrapped(
                f"measured in {counted(len(peaks), 'run')} of the store, the most of a GPU that was taken: {said}"
            )
    todo = unfinished(unique(units))
    if todo and not any(engine_backend(unit.config.engine.kind).several_ranks for unit in todo):
        _show_cards(todo, card, gpus)


def _show_cards(todo: Sequence[Unit], card: str | None, gpus: int | None) -> None:
    """Hours of all runs on 1, 4 and 8 cards, or on as many as asked for, a run each (--gpus 1 --jobs N)."""
    counts = _COUNTS if gpus is None else (gpus,)
    title = f"{counted(len(todo), 'run')} with benchmarks, one on each card: hours of a run, hours of all, dollars"
    table = Table(*map(fixed, ("card", "a run", *(f"on {count}" for count in counts), "$")), title=title)
    for machine in chosen(single_gpus(), card, None):
        hours = card_hours(todo, machine)
        if hours is None:
            table.add_row(machine.card.name, *["no"] * (len(counts) + 2))
            continue
        shortest, longest = min(hours.runs), max(hours.runs)
        one = f"{longest:.1f}" if longest - shortest < 0.05 else f"{shortest:.1f} to {longest:.1f}"
        table.add_row(
            machine.card.name, one, *(f"{hours.clock(count):.1f}" for count in counts), f"{hours.dollars:.0f}"
        )
    show(table, stderr=True)


def show_fit(config: RunConfig, settings: str = "", card: str | None = None, gpus: int | None = None) -> None:
    """GiB of each GPU by part, seconds of a step and dollars of the run, on every machine; under the table what does
    not fit and what would help. settings: of a sweep, those that it holds for, where others take something else."""
    reference = needs_reference(config)
    several = engine_backend(config.engine.kind).several_ranks
    there = chosen(machines(), card, gpus) if several else chosen(single_gpus(), card, None)
    fits = [fit(config, machine, reference=reference) for machine in there]
    title = (
        f"{config.model.name}{', with a frozen reference policy' if reference else ''}"
        f"{f', {settings}' if settings else ''}: "
        f"GiB of each GPU, seconds a step, dollars of {config.train.steps} steps"
    )
    table = Table(*map(fixed, ("machine", *_PARTS, "sampler", "cache", *_PHASES, "of", "s", "$")), title=title)
    for one in fits:
        table.add_row(one.machine.name, *_figures(one, config.train.steps))
    show(table, stderr=True)
    for one in fits:
        if one.problem:
            say_wrapped(f"{one.machine.name}: does not fit, {one.problem}. {_remedy(one)}")
    _say_chosen(fits)
    times = [f"{one.machine.name} {_seconds(one)}" for one in fits if not one.problem]
    if times:
        say_wrapped(f"seconds of a step (rollout + old log-probs + updates + rest): {'; '.join(times)}")
    prices = ", ".join(
        f"{gpu} {price}" for gpu, price in sorted({(one.machine.card.name, one.machine.card.price) for one in fits})
    )
    say_wrapped(f"{ASSUMPTIONS}; $ a GPU-hour: {prices}")
    say_wrapped(_ASSUMED)


def _say_chosen(fits: Iterable[Fit]) -> None:
    """Print the choices for what the configuration leaves open on the machines that it fits on, with their reasons."""
    machines: dict[tuple[str, str], list[str]] = {}
    for one in fits:
        for key, choice in ({} if one.problem else one.chosen).items():
            machines.setdefault((key, choice), []).append(one.machine.name)
    for key in dict.fromkeys(key for key, _ in machines):
        said = [f"{choice} ({', '.join(names)})" for (name, choice), names in machines.items() if name == key]
        say_wrapped(f"{key} is null, so it becomes {'; '.join(said)}")


def _figures(one: Fit, steps: int) -> list[str]:
    memory = one.memory
    parts = [getattr(memory, part) for part in _PARTS]
    phases = [getattr(memory, phase) for phase in _PHASES]
    sizes = [*parts, memory.sampler, memory.cache, *phases, one.machine.card.bytes]
    cells = [f"{size / GIB:.1f}" if size else "–" for size in sizes]
    return [*cells, *(["no", "no"] if one.problem else [f"{one.time.total:.0f}", f"{one.cost(steps):.0f}"])]


def _seconds(one: Fit) -> str:
    time = one.time
    if time.beside:
        rest = time.logprobs, time.sync
        return " + ".join(
            (f"max({time.rollout:.0f}, {time.updates + time.offload:.0f})", *(f"{part:.0f}" for part in rest))
        )
    return " + ".join(f"{part:.0f}" for part in (time.rollout, time.logprobs, time.updates, time.offload + time.sync))


def _remedy(one: Fit) -> str:
    others = f" Or LoRA, another method with an id of its own: {_words(one.adapters)}." if one.adapters else ""
    if one.changes is None:
        return "No setting of memory alone makes it fit: take more or larger GPUs." + others
    return f"It would with {_words(one.changes)}{''.join(f'; {words}' for words in one.savings)}." + others


def _words(changes: tuple[str, ...]) -> str:
    servers = any(word.startswith("sampler.kind=") for word in changes)
    return " ".join(changes) + (", servers on other GPUs" if servers else "")


def show_disk(units: Sequence[Unit]) -> None:
    """A line for each model and size of checkpoint, and one for all."""
    runs: dict[tuple[str, RunDisk], int] = {}
    for unit in unique(units):
        if unit.row.objective is not None:
            key = (unit.config.model.name, run_disk(unit.config))
            runs[key] = runs.get(key, 0) + 1
    for (name, run), count in runs.items():
        say_wrapped(
            f"disk, {name}: {_gb(run.peak)} for a run while it trains ({CHECKPOINTS} checkpoints of "
            f"{_gb(run.checkpoint)}, one of them being written), {_gb(run.weights)} of weights when it has finished; "
            f"{counted(count, 'run')}"
        )
    if runs:
        every = study_disk(units)
        say_wrapped(
            f"disk in all: {_gb(every.kept)} stay; at most {_gb(every.one)} on the way with one run at a time, "
            f"{_gb(every.all)} with all at once"
        )


def _gb(size: float) -> str:
    return f"{size / GB:,.0f} GB" if size >= 10 * GB else f"{size / GB:.1f} GB"
