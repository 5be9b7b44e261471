"""`tepo ablate`, `reproduce` and `plan`: studies run and priced."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tepo.common.errors import UserError
from tepo_cli.cli_options import (
    Asked,
    DryRun,
    Format,
    Lines,
    Page,
    Records,
    Results,
    Trust,
    Where,
    formula_words,
    unbundled,
)

if TYPE_CHECKING:
    from tepo.launch.run_units import Slots
    from tepo.studies.plan_studies import Planned

STUDIES = ("table1", "table2", "table3", "table4", "gtpo", "readings")
_CARD = "Only this card: h100, a100, rtx4090 …, or 'NAME:GiB,GB/s,TFLOP/s,$ an hour'."


@unbundled
def ablate(
    study: Annotated[str, typer.Argument(help="A panel or table: panel-e, table1 …; claims, or one (`tepo list`).")],
    asked: Asked,
    where: Where,
    format: Format = "terminal",
    formula: Lines = None,
    dry_run: DryRun = False,
) -> None:
    """Run one study and print its table beside the paper's.

    Trains and measures what the store does not have yet. A study with `tune:` tries its settings first, then runs each
    row at the one that validation chose.

    \b
    tepo ablate panel-e --jobs 2
    tepo ablate MINE --seeds 0,1,2 --set train.steps=20
    tepo ablate panel-e --scale single_gpu --dry-run"""
    from tepo.launch.run_units import run_planned
    from tepo.reporting.tables.render import check_format
    from tepo.studies.plan import scale_of
    from tepo.studies.planned_facts import read_facts
    from tepo_cli.study_outputs import show_claims, show_recorded_tables, show_tables

    check_format(format)  # now, not after an hour of training
    slots, words = where.slots(), formula_words(formula)
    if dry_run:
        _show_plan(asked, slots, asked.plan([study], words), check=bool(asked.override or words))
        return
    planned = run_planned(lambda: asked.plan([study], words), slots)
    if any(planned_study.registered for planned_study, _ in planned):
        show_claims(asked.store, scale_of(planned[0][1]), format)
    else:
        show_tables(*read_facts(planned, asked.chosen_seeds), format)
        if format == "terminal":
            show_recorded_tables(planned)


@unbundled
def reproduce(
    asked: Asked,
    where: Where,
    studies: Annotated[
        list[str] | None,
        typer.Argument(help=f"Studies to run, or claims (default: {' '.join(STUDIES)}).", show_default=False),
    ] = None,
    records: Annotated[
        bool, typer.Option("--records", help="Run nothing: read what the store lacks from records.")
    ] = False,
    out: Page = Path("report.html"),
    results: Results = None,
    dry_run: DryRun = False,
) -> None:
    """Run the papers' tables and figures, and write their page.

    Rows that tables share are trained once.

    \b
    tepo reproduce --dry-run
    tepo reproduce --jobs 2"""
    from tepo.launch.run_units import run_planned
    from tepo.studies.planned_facts import read_facts
    from tepo_cli.study_outputs import check_outputs, write_outputs

    check_outputs(out, results)
    slots, names = where.slots(), studies or STUDIES
    idle = records or dry_run
    ready = asked.plan(names) if idle else run_planned(lambda: asked.plan(names), slots)
    planned, facts = read_facts(ready, asked.chosen_seeds, records=records)
    if dry_run:
        _show_plan(asked, slots, planned)
    elif not facts.runs["done"].any():
        what = f"nothing of {' '.join(names)} is measured or on record"
        raise UserError(what, where=f"store {asked.store}", fix="leave --records out to run it")
    else:
        write_outputs(planned, facts, out, results)


def _show_plan(asked: Asked, slots: "Slots", planned: "Planned", check: bool = False) -> None:
    """Print the runs with their ids, and the jobs that Slurm would be given. check: that every row can be made."""
    from tepo.launch.local import unfinished
    from tepo.launch.run_units import other_bases
    from tepo.launch.sbatch import job_script, nodes_here
    from tepo.launch.slurm import planned_memory, requests
    from tepo.studies.plan import unique
    from tepo_cli.screen import say_wrapped
    from tepo_cli.show_plan import show_count, show_units

    units = [unit for _, units in planned for unit in units]
    if check:
        from tepo.launch.unit_checks import check_rows  # imports torch

        check_rows(units)
    jobs, kinds, slurm = unfinished(unique(units)), list[str](), slots.slurm
    if slurm is not None:
        kinds = nodes_here()
        slurm = requests(jobs, slurm, kinds)
    for one_core in (True, False):
        if alike := [unit for unit in units if unit.one_core is one_core]:
            show_count(alike)
    for line in other_bases(jobs):
        say_wrapped(line)
    show_units(units)
    if slurm is None or not jobs:
        return
    print(job_script(slurm, len(jobs), asked.store.absolute() / "slurm" / "DATE-PID"), end="")
    if memory := planned_memory(jobs, slurm):
        say_wrapped(f"main memory of each node by the plan: {memory / 2**30:.0f} GiB")
    if not kinds:
        say_wrapped("no Slurm answers here: the memory of its nodes is not known, and none is requested")


@unbundled
def plan(
    studies: Annotated[list[str], typer.Argument(help="Studies: panel-e, table1, table3 …")],
    asked: Asked,
    trust: Trust = False,
    records: Records = False,
    card: Annotated[str | None, typer.Option(help=_CARD, show_default=False)] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="Only machines of N GPUs.", show_default=False)] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Totals only, no tables.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Every run with its id; memory by part and phase, with what is assumed.")
    ] = False,
    difference: Annotated[
        float | None,
        typer.Option(
            metavar="POINTS",
            min=0.01,
            max=100,
            help="Instead of the price: the seeds and problems that find so large a difference with 80%.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Price a study before it runs: time, dollars, disk, power.

    The first line is the answer. Under it stand what the price is based on, what the store has, and of models on GPUs
    disk, memory and what does not fit. A row whose setting is not chosen yet (`tune:`) is priced as the mean of its
    draws. The power is estimated from rows in the store with two seeds or more.

    Runs nothing but, where a laptop store holds no run on the same data, a probe of two steps.

    \b
    tepo plan panel-e --scale single_gpu
    tepo plan table1 --difference 2 --records"""
    from tepo.studies.plan import scale_of
    from tepo.studies.tuning_result import undecided
    from tepo_cli.screen import say_wrapped
    from tepo_cli.show_plan import count, show_power_line, show_price, show_units

    if brief and verbose:
        raise UserError("a plan that is both short and long", where="--brief --verbose", fix="leave out one of them")
    read = records or difference is not None
    planned, facts = asked.read(studies, records) if read else (asked.plan(studies), None)
    units = [unit for _, units in planned for unit in units]
    one_core = units[0].one_core
    if any(unit.one_core is not one_core for unit in units):
        fix = "a plan of each: tepo plan STUDY"
        raise UserError(
            "runs on cores of a CPU and runs on GPUs have no price in common", where=" ".join(studies), fix=fix
        )
    if one_core and (card or gpus):
        raise UserError(
            "a plan of runs on one core takes no GPU", where="--card, --gpus", fix="--scale single_gpu or paper"
        )
    if facts and difference is not None:
        from tepo_cli.show_power import show_power

        show_power(planned, facts, difference)
        return
    if asked.override:  # else torch need not be imported: the study's own settings were checked when they were shipped
        from tepo.launch.unit_checks import check_rows

        check_rows(units)
    later = undecided(planned, asked.chosen_seeds)
    hours = []
    if not one_core:
        from tepo.studies.planned_facts import Records
        from tepo_cli.show_fit import answer, hours_on, show_cards, show_disk, show_fits

        hours = hours_on(units, card, gpus)
        estimate = f": {answer(units, hours, gpus)}" if hours else ""
        if hours and not any(unit.id in Records.found().by_run for unit in units):
            estimate += "; planned, not measured: none of these runs is on record"
        say_wrapped(count(units, *later) + estimate)
    show_price(units, asked.store, *later)
    for tune in filter(None, (study.tune_at(scale_of(part)) for study, part in planned)):
        for line in tune.gap_lines:
            say_wrapped(line)
    show_power_line(planned, facts)
    if not one_core:
        show_disk(units)
    if brief:
        return
    if not one_core:
        show_cards(units, hours, gpus)
    show_units(units, rows=not verbose)
    if not one_core:
        show_fits(units, card, gpus, verbose=verbose)
