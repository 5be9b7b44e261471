"""Memory, time, cost and disk of runs on GPUs. Imported when a plan of such is printed."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tepo.common.grouping import grouped
from tepo.common.text import counted, setting_text
from tepo.launch.local import unfinished
from tepo.planning.fit import Fit, StudyHours, fit, measured_peaks, study_disk, study_hours, takes
from tepo.planning.gpus import Machine, chosen, machines
from tepo.sampling.backends.vllm import ASLEEP, WORK
from tepo.studies.plan import Unit, unique
from tepo.training.resources.disk import GB, run_disk
from tepo.training.resources.estimate import ASSUMPTIONS
from tepo.training.resources.gpu_cards import GIB
from tepo.training.resources.memory import COMMUNICATORS, CONTEXT, FRAGMENTS
from tepo.training.resources.node import PROCESS, node_memory
from tepo.training.resources.remedies import NONE
from tepo.training.run import Run
from tepo_cli.screen import say_wrapped, show

_PARTS = ("weights", "reference", "gradients", "optimiser", "activations", "logits", "sampler", "cache")
_PHASES = ("loading", "sampling", "syncing", "updating")
_ASSUMED = (
    f"Phases, with {CONTEXT / GIB:.1f} GiB of CUDA and, on several ranks, {COMMUNICATORS / GIB:.1f} of NCCL. loading: "
    "the weights, or a rank's shard and a tensor of them, then the optimiser's states. sampling: what the trainer "
    "keeps, and the sampler's share, of which weights and its own "
    f"work (vLLM: {WORK / GIB:.1f} GiB) leave the cache; refills share it. syncing: the share without the cache, and "
    "the largest tensor, gathered. updating: what the trainer keeps, gradients, the larger of activations with logits "
    f"and the optimiser's step, {FRAGMENTS:.0%} of these for fragments, and what the sampler does not give back (vLLM: "
    f"{ASLEEP / GIB:.1f} GiB)."
)
_COUNTS = (1, 4, 8)  # cards side by side
_FEW = 3  # machines that are named in a sentence


def hours_on(units: Sequence[Unit], card: str | None = None, gpus: int | None = None) -> list[StudyHours]:
    """Hours of what is to do, on each machine or, where a run takes one card, on each card; none where nothing is.
    card, gpus: on these machines alone."""
    todo = unfinished(unique(units))
    return [study_hours(todo, machine) for machine in _machines(_several_ranks(todo), card, gpus)] if todo else []


def answer(units: Sequence[Unit], found: Sequence[StudyHours], gpus: int | None) -> str:
    """Hours and dollars on one machine, or on `gpus` cards side by side; then what does not fit on which. Of those that
    every run fits on it is the machine with the least product of hours and dollars."""
    several = _several_ranks(unfinished(unique(units)))
    parts = ["no machine that every run fits on"]
    if fitting := [hours for hours in found if not hours.unfit]:
        best = min(fitting, key=lambda hours: hours.clock(1) * hours.dollars)
        cards = 1 if several else gpus or 1
        name = best.machine.name if several else f"{'one' if cards == 1 else cards} {best.machine.card.name}"
        parts = [f"{best.clock(cards):,.1f} h on {name}, about ${best.dollars:,.0f}"]
    refused: dict[tuple[str, ...], list[str]] = {}
    for model in dict.fromkeys(model for hours in found for model in hours.unfit):
        on = (hours.machine.name if several else hours.machine.card.name for hours in found if model in hours.unfit)
        refused.setdefault(tuple(on), []).append(model)
    for names, models in refused.items():
        where = ", ".join(names) if len(names) <= _FEW else f"{len(names)} of {len(found)} machines"
        parts.append(f"{', '.join(models)} {'does' if len(models) == 1 else 'do'} not fit on {where}")
    return "; ".join(parts)


def show_cards(units: Sequence[Unit], found: Sequence[StudyHours], gpus: int | None = None) -> None:
    """Hours of all runs on 1, 4 and 8 cards, or on as many as asked for, a run each (--gpus 1 --jobs N); nothing where
    a run takes several."""
    todo = unfinished(unique(units))
    if not todo or _several_ranks(todo):
        return
    counts = _COUNTS if gpus is None else (gpus,)
    title = f"{counted(len(todo), 'run')} with benchmarks, one on each card: hours of a run, hours of all, dollars"
    rows = []
    for hours in found:
        cells = ["no"] * (len(counts) + 2)
        if not hours.unfit:
            ends = dict.fromkeys(f"{end:.1f}" for end in (min(hours.runs), max(hours.runs)))
            cells = [" to ".join(ends), *(f"{hours.clock(count):.1f}" for count in counts), f"{hours.dollars:.0f}"]
        rows.append((hours.machine.card.name, *cells))
    show(("card", "a run", *(f"on {count}" for count in counts), "$"), rows, title, stderr=True)


def show_fits(
    units: Iterable[Unit], card: str | None = None, gpus: int | None = None, *, verbose: bool = False
) -> None:
    """One table for each model and setting in a plan; rows that take the same share one. card, gpus: on these machines
    alone. verbose: memory by part and phase, what the plan chooses, and what it assumes."""
    groups: dict[tuple[str, bool], list[Unit]] = {}
    for unit in units:
        if unit.trains:
            unit.as_typed()  # its objective is loaded
            groups.setdefault((takes(unit.config), Run(unit.config).needs.initial_policy), []).append(unit)
    points = [list(dict.fromkeys(setting_text(unit.row.setting.point) for unit in alike)) for alike in groups.values()]
    every = {point for some in points for point in some}
    for alike, some in zip(groups.values(), points, strict=True):
        _show_fit(
            Run(alike[0].config), "" if set(some) == every else f", {'; '.join(some)}", card, gpus, verbose=verbose
        )
        peaks = [unit_peaks for unit in alike if (unit_peaks := measured_peaks(unit.folder.metrics()))]
        if peaks:
            maxima = ", ".join(
                f"{phase} {max(unit_peaks[phase] for unit_peaks in peaks):.1f} GiB" for phase in peaks[0]
            )
            runs = counted(len(peaks), "run")
            say_wrapped(f"measured in {runs} of the store, the most of a GPU that was taken: {maxima}")
    if groups:
        _say_assumed(card, verbose=verbose)


def show_fit(run: Run, card: str | None = None) -> None:
    """All that is planned of one run."""
    _show_fit(run, "", card, None, verbose=True)
    _say_assumed(card, verbose=True)


def best_machine(run: Run, steps: int, *, measured: bool) -> Iterator[tuple[str, str]]:
    """Time and memory of so many steps of one run on the machine with the least product of hours and dollars, and where
    it does not fit."""
    fits = [fit(run, machine) for machine in _machines(run.engine.several_ranks, None, None)]
    unfit = [machine_fit.machine.name for machine_fit in fits if machine_fit.problem]
    where = ", ".join(unfit) if len(unfit) <= _FEW else f"{len(unfit)} of {len(fits)} machines"
    lacks = f"; does not fit on {where}" if unfit else ""

    def hours(machine_fit: Fit) -> float:
        return steps * machine_fit.time.total / 3600 + (machine_fit.hours(trained=False) if measured else 0.0)

    if len(unfit) == len(fits):
        yield "time", f"fits on no machine that is planned for: {fits[-1].problem} (--show-config says what would help)"
        return
    best = min(
        (machine_fit for machine_fit in fits if not machine_fit.problem),
        key=lambda machine_fit: hours(machine_fit) ** 2 * machine_fit.cost(1) / machine_fit.time.total,
    )
    price = hours(best) * best.machine.ranks * best.machine.card.price
    basis = "by a closed form, to a factor of 1.5"
    yield "time", f"about {hours(best):.1f} h on {best.machine.name}, ${price:,.0f}, {basis}; --show-config has others"
    yield "memory", f"{best.memory.peak / GIB:.0f} GiB of {best.machine.card.bytes / GIB:.0f} on each GPU{lacks}"


def _machines(several: bool, card: str | None, gpus: int | None) -> list[Machine]:
    return chosen(machines(), card, gpus if several else 1)


def _several_ranks(units: Iterable[Unit]) -> bool:
    """True where a run may take several GPUs, and so a machine of them."""
    return any(Run(unit.config).engine.several_ranks for unit in units)


def _show_fit(run: Run, settings: str, card: str | None, gpus: int | None, *, verbose: bool) -> None:
    """GiB of each GPU, seconds of a step and dollars of the run, on every machine; under the table what does not fit
    and what would help, and the layouts. settings: of a sweep, those that it holds for."""
    steps, reference = run.config.train.steps, ", with a frozen reference policy" * run.needs.initial_policy
    fits = [fit(run, machine) for machine in _machines(run.engine.several_ranks, card, gpus)]
    name = f"{run.config.model.name}{reference}{settings}"
    sizes = (*_PARTS, *_PHASES) if verbose else ("peak",)
    title = f"{name}: GiB of each GPU, seconds a step, dollars of {counted(steps, 'step')}"
    rows = []
    for machine_fit in fits:
        memory = [*(getattr(machine_fit.memory, size) for size in sizes), machine_fit.machine.card.bytes]
        spent = (
            ["no", "no"] if machine_fit.problem else [f"{machine_fit.time.total:.0f}", f"{machine_fit.cost(steps):.0f}"]
        )
        rows.append((machine_fit.machine.name, *(f"{size / GIB:.1f}" if size else "–" for size in memory), *spent))
    show(("machine", *sizes, "of", "s", "$"), rows, title, stderr=True)
    for machine_fit in (machine_fit for machine_fit in fits if machine_fit.problem):
        remedy = f"No setting of memory alone makes it fit: {NONE}."
        if machine_fit.changes is not None:
            servers = any(word.startswith("sampler.kind=") for word in machine_fit.changes)
            remedy = f"It would with {' '.join(machine_fit.changes)}{', servers on other GPUs' if servers else ''}."
        say_wrapped(f"{machine_fit.machine.name}: does not fit, {machine_fit.problem}. {remedy}")
    fits = [machine_fit for machine_fit in fits if not machine_fit.problem]
    of_node = f"main memory of a node, of it {PROCESS / GIB:.0f} GiB a rank for its process:"
    nodes = [node_memory(machine_fit.run, machine_fit.machine.of(machine_fit.run)) / GIB for machine_fit in fits]
    _say_by_machine(of_node, ((f"{size:.0f} GiB", machine_fit) for size, machine_fit in zip(nodes, fits, strict=True)))
    if not verbose:
        _say_by_machine("layout:", ((_layout(machine_fit), machine_fit) for machine_fit in fits))
    if verbose and fits:
        for key in dict.fromkeys(key for machine_fit in fits for key in machine_fit.why):
            _say_by_machine(
                f"{key} is left open, so it becomes",
                ((machine_fit.why.get(key, ""), machine_fit) for machine_fit in fits),
            )
        timings = []
        for machine_fit in fits:
            time = machine_fit.time
            parts = [time.rollout, time.logprobs, time.updates + time.offload, time.reductions]
            parts += [time.rest, time.checkpoints]
            beside = " (rollout beside the updates)" if time.beside else ""
            timings.append(f"{machine_fit.machine.name} {' + '.join(f'{part:.0f}' for part in parts)}{beside}")
        phases = "rollout + old log-probs + updates + reductions + rest + checkpoints"
        say_wrapped(f"seconds of a step ({phases}): {'; '.join(timings)}")


def _layout(machine_fit: Fit) -> str:
    """The choices as words of a command line."""
    return " ".join(f"{key}={text.partition(':')[0]}" for key, text in machine_fit.why.items())


def _say_by_machine(what: str, texts: Iterable[tuple[str, Fit]]) -> None:
    """Print what holds for which machines, without those of which there is nothing to say."""
    if names := grouped((text, machine_fit.machine.name) for text, machine_fit in texts if text):
        say_wrapped(f"{what} " + "; ".join(f"{text} ({', '.join(on)})" for text, on in names.items()))


def _say_assumed(card: str | None, *, verbose: bool) -> None:
    """The prices of cards, and the assumptions or where they are found."""
    for text in (ASSUMPTIONS, _ASSUMED) if verbose else ():
        say_wrapped(text)
    prices = sorted({(machine.card.name, machine.card.price) for machine in chosen(machines(), card, None)})
    price_line = f"$ a GPU-hour, assumed: {', '.join(f'{name} {price}' for name, price in prices)}"
    more = "seconds to a factor of 1.5; --verbose has memory by part and phase, the choices and assumptions"
    say_wrapped(price_line if verbose else f"{price_line}; {more}")


def show_disk(units: Sequence[Unit]) -> None:
    """A line for each model and size of checkpoint, and one for all."""
    trained = [Run(unit.config) for unit in unique(units) if unit.trains]
    for (name, disk), count in Counter((run.config.model.name, run_disk(run)) for run in trained).items():
        say_wrapped(
            f"disk, {name}: {_gb(disk.peak)} for a run while it trains ({disk.checkpoints} checkpoints of "
            f"{_gb(disk.checkpoint)}, one of them being written), {_gb(disk.weights)} of weights when it has finished; "
            f"{counted(count, 'run')}"
        )
    if trained:
        every = study_disk(units)
        say_wrapped(
            f"disk in all: {_gb(every.kept)} stay; at most {_gb(every.one)} on the way with one run at a time, "
            f"{_gb(every.all)} with all at once"
        )


def _gb(size: float) -> str:
    return f"{size / GB:,.0f} GB" if size >= 10 * GB else f"{size / GB:.1f} GB"
