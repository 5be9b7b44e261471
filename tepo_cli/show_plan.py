"""A plan on the screen: its units, their price, and what the store holds beside them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tepo.common.errors import UserError
from tepo.common.text import counted
from tepo.launch.local import unfinished
from tepo.reporting.progress import say
from tepo.studies.plan import Unit, reported, unique
from tepo.studies.plan_studies import Planned
from tepo_cli.screen import say_wrapped, show

if TYPE_CHECKING:
    from tepo.store.facts import Facts


def count(units: Sequence[Unit], *later: Sequence[Unit]) -> str:
    """Runs of a plan and those to do; later: stand-ins for those of rows whose settings are not known yet."""
    more = sum(map(len, later))
    runs = f"{counted(len(unique(units)), 'run')}, {len(unfinished(unique(units)))} to do"
    return runs + (f" and {more} at settings not chosen yet" if more else "")


def show_units(units: Sequence[Unit], *, rows: bool = False) -> None:
    """Print what would be trained and measured: a line a unit with its id or, with `rows`, one a row over its seeds."""
    for model in dict.fromkeys(unit.config.model.name for unit in units):
        lines: dict[tuple[str, ...], list[Unit]] = {}
        for unit in (unit for unit in units if unit.config.model.name == model):
            seed = str(unit.seed) if unit.trains else "–"
            lines.setdefault((unit.label,) if rows else (unit.label, seed, unit.id), []).append(unit)
        heads, table_rows = ("seeds",) if rows else ("seed", "run"), []
        for names, alike in lines.items():
            seeds = [", ".join(dict.fromkeys(str(unit.seed) for unit in alike))] if rows else []
            table_rows.append((*names, *seeds, *_to_do(alike)))
        show(("row", *heads, "train", "measure"), table_rows, f"plan: model {model}", wrapped=("row",), stderr=True)


def _to_do(units: Iterable[Unit]) -> list[str]:
    """`2 x done, 1 x 36 steps`: what is to train and to measure of a row's seeds; what all share without its number."""
    train, measure = Counter[str](), Counter[str]()
    for unit in units:
        done_state = "recorded" if unit.recorded else "done"
        to_train = done_state if unit.trained() else counted(unit.config.train.steps, "step")
        train[to_train if unit.trains else "–"] += 1
        lacking = "validation" if unit.tuning else counted(len(unit.missing_benchmarks()), "benchmark")
        measure[done_state if unit.to_measure() == 0 else lacking] += 1
    return [
        ", ".join(state if len(numbers) == 1 else f"{number} x {state}" for state, number in numbers.items())
        for numbers in (train, measure)
    ]


def show_price(
    units: Sequence[Unit], store: Path, shortlists: Sequence[Unit] = (), choices: Sequence[Unit] = ()
) -> None:
    """Runs and CPU time of what is to do in one line; then disk and the measurements behind it. At a scale of GPUs
    `show_fit.answer` has counted the runs. shortlists, choices: stand-ins for runs of rows whose settings are not
    known yet."""
    from tepo.planning.laptop_cost import cpu_seconds, disk_bytes, probe, unpriced
    from tepo.policy.model.model_location import is_gone
    from tepo.store.find_run import costs

    todo, one_core = unfinished(unique(units)), units[0].one_core
    if not todo:
        if one_core:
            say(count(units))
        return
    # others cost something else
    known_costs = [cost for cost in costs(store) if any(cost.prices(unit.config) for unit in todo)]
    new = unpriced(todo, known_costs)
    if new and not one_core:  # a probe would load the model
        name = new[0].config.data.name
        say_wrapped(f"nothing like {new[0].label} on data={name} was measured in the store: no price from measurements")
        return
    if gone := next((unit for unit in new if is_gone(unit.config.model.path)), None):
        say_wrapped(f"no measured run like {gone.label} in the store, and its model is not here for a probe")
        show_count(units)
        return
    basis = [f"medians over {counted(len(known_costs), 'measured run')} in {store}"] if known_costs else []
    for unit in new:
        name = unit.config.data.name
        say_wrapped(f"no measured run like {unit.label} on data={name} in the store: probing two steps of it")
        known_costs.append(probe(unit))
    if new:
        basis.append("a probe of two steps" if len(new) == 1 else f"{len(new)} probes of two steps")
    seconds, disk = (
        of((*todo, *shortlists, *choices)) for of in (lambda every: cpu_seconds(every, known_costs), disk_bytes)
    )
    cpu = f"{time_text(seconds, 'CPU ')}, about {time_text(seconds / 2)} on two idle cores"
    say_wrapped(f"{count(units, shortlists, choices)}: {cpu}" if one_core else f"measured: {cpu}")
    say_wrapped(f"{disk / 2**20:.0f} MiB of disk; from {' and '.join(basis)}")
    if shortlists:
        say_wrapped(f"then the best draws with the other tuning seeds, {counted(len(shortlists), 'run')}")
    if choices:
        runs = counted(len(choices), "run")
        say_wrapped(f"then the settings chosen by validation, {runs}, priced as the first of them")


def show_count(units: Sequence[Unit]) -> None:
    """Runs and time of what is to do in one line, from the store and closed forms: nothing is probed."""
    todo = unfinished(unique(units))
    if not todo:
        say_wrapped(count(units))
    elif units[0].one_core:
        from tepo.planning.laptop_cost import closed_form_seconds, cpu_seconds, steps_to_train
        from tepo.store.find_run import costs
        from tepo.training.run import Run

        known_costs, seconds = [cost for cost in costs(todo[0].store) if cost.steps], 0.0
        new = [unit for unit in todo if not any(cost.prices(unit.config) for cost in known_costs)]
        try:
            for unit in new:
                seconds += closed_form_seconds(Run(unit.config), steps_to_train(unit), measured=unit.to_measure() > 0)
        except UserError as error:  # a model whose shape is not known
            say_wrapped(f"{count(units)}; time not known: {error.what}")
            return
        seconds += cpu_seconds([unit for unit in todo if unit not in new], known_costs)
        basis = "by a closed form, to a factor of four" if new else "by runs like them in the store"
        say_wrapped(f"{count(units)}: about {time_text(seconds, 'CPU ')}, {basis}")
    else:
        from tepo_cli.show_fit import answer, hours_on

        say_wrapped(f"{count(units)}: {answer(units, hours_on(units), None)}, by a closed form, to a factor of 1.5")


def time_text(seconds: float, kind: str = "") -> str:
    """`40 seconds`, `2.1 CPU minutes`, `3.5 CPU hours`."""
    for size, unit in ((3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {kind}{unit}"
    return counted(round(seconds), f"{kind}second")


def show_power_line(planned: Planned, facts: "Facts | None") -> None:
    """Print the power of the planned seeds, where the store or records have something to estimate it from."""
    if not any(study.baseline for study, _ in planned):
        return
    final_units = reported(unit for _, units in planned for unit in units)
    if not any(unit.seed and not unit.missing_benchmarks() for unit in final_units):
        say_wrapped("power: unknown, no row is measured under two seeds or more")  # said without importing pandas
        return
    from tepo.studies.planned_facts import read_facts
    from tepo_cli.show_power import power_line

    facts = facts or read_facts(planned)[1]
    say_wrapped(power_line(planned, facts))
