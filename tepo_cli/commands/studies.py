"""`tepo ablate`, `reproduce`, `plan`, `power` and `claims`: studies planned, run and judged."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tepo_cli.cli_options import (
    JOBS,
    Data,
    Format,
    Gpus,
    Jobs,
    Launcher,
    Lines,
    Minutes,
    Nodes,
    Partition,
    Records,
    Scale,
    Seeds,
    Set,
    SetAsRun,
    Slurm,
    Store,
    Trust,
    filled,
    formula_words,
    parse_seeds,
    row_overrides,
    slots,
)


def ablate(
    study: Annotated[str, typer.Argument(help="A panel or table: panel-e, table1 …; see `tepo list`.")],
    scale: Scale = "laptop",
    seeds: Seeds = None,
    jobs: Jobs = JOBS,
    store: Store = Path("runs"),
    format: Format = "terminal",
    data: Data = None,
    override: Set = None,
    formula: Lines = None,
    trust: Trust = False,
    launcher: Launcher = "local",
    partition: Partition = None,
    gpus: Gpus = None,
    nodes: Nodes = None,
    minutes: Minutes = None,
    slurm: Slurm = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; run nothing.")] = False,
) -> None:
    """Run one study and print its table beside the paper's.

    Trains and measures what the store does not have yet. A study with `tune:` tries its settings first, then runs each
    row at the one that validation chose."""
    from tepo.launch.run_units import run_planned
    from tepo.reporting.tables.render import check_format
    from tepo.studies.plan_studies import plan_all
    from tepo_cli.screen import say_wrapped
    from tepo_cli.show_plan import count, show_jobs, show_units
    from tepo_cli.study_outputs import show_tables

    check_format(format)  # now, not after an hour of training
    where = slots(launcher, jobs, gpus, slurm, partition=partition, nodes=nodes, minutes=minutes)
    overrides = row_overrides([*(override or ()), *formula_words(formula)], data)
    plan = partial(plan_all, [study], scale, store=store, seeds=parse_seeds(seeds), overrides=overrides)
    if dry_run:
        units = [unit for _, units in plan() for unit in units]
        if override or formula:
            from tepo.launch.unit_checks import check_rows  # imports torch

            check_rows(units)
        say_wrapped(count(units))
        show_units(units)
        show_jobs(units, where, store)
        return
    from tepo.studies.planned_facts import read_facts

    show_tables(*read_facts(run_planned(plan, scale, where), scale, parse_seeds(seeds)), scale, format)


STUDIES = ("table1", "table2", "table3", "table4", "gtpo", "readings")


def reproduce(
    studies: Annotated[
        list[str] | None,
        typer.Argument(help=f"Studies to run, or claims (default: {' '.join(STUDIES)}).", show_default=False),
    ] = None,
    scale: Scale = "laptop",
    seeds: Seeds = None,
    jobs: Jobs = JOBS,
    store: Store = Path("runs"),
    data: Data = None,
    launcher: Launcher = "local",
    partition: Partition = None,
    gpus: Gpus = None,
    nodes: Nodes = None,
    minutes: Minutes = None,
    slurm: Slurm = None,
    override: Set = None,
    trust: Trust = False,
    records: Annotated[
        bool, typer.Option("--records", help="Run nothing: read what the store lacks from records.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    results: Annotated[
        Path | None, typer.Option(help="Also write findings, claims and short tables as Markdown, e.g. results.md.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan; run nothing (`tepo plan` prices it).")
    ] = False,
) -> None:
    """Run the papers' tables and figures, and write their page.

    Rows that tables share are trained once."""
    from tepo.launch.run_units import run_planned
    from tepo.studies.plan_studies import plan_all
    from tepo.studies.planned_facts import read_facts
    from tepo_cli.screen import say_wrapped
    from tepo_cli.show_plan import count, show_jobs, show_units
    from tepo_cli.study_outputs import check_outputs, write_outputs

    check_outputs(out, results)
    where = slots(launcher, jobs, gpus, slurm, partition=partition, nodes=nodes, minutes=minutes)
    overrides = row_overrides(override, data)
    chosen = parse_seeds(seeds)
    plan = partial(plan_all, studies or STUDIES, scale, store=store, seeds=chosen, overrides=overrides)
    if not records and not dry_run:
        planned = run_planned(plan, scale, where)
        write_outputs(*read_facts(planned, scale, chosen), scale, out, results)
        return
    planned, facts = read_facts(plan(), scale, chosen, records=records)
    if dry_run:
        units = [unit for _, units in planned for unit in units]
        say_wrapped(count(units))
        show_units(units)
        show_jobs(units, where, store)
        return
    write_outputs(planned, facts, scale, out, results)


def plan(
    studies: Annotated[list[str], typer.Argument(help="Studies: panel-e, table1, table3 …")],
    scale: Scale = "laptop",
    seeds: Seeds = None,
    store: Store = Path("runs"),
    data: Data = None,
    override: Set = None,
    trust: Trust = False,
    records: Records = False,
    card: Annotated[str | None, typer.Option(help="Only this card: h100, a100, rtx4090 …", show_default=False)] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="Only machines of N GPUs.", show_default=False)] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Totals only, no tables.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Every run with its id; memory by part and phase, with what is assumed.")
    ] = False,
) -> None:
    """Price a study before it runs: time, dollars, disk.

    The first line is the answer. Under it stand what the price is based on, what the store has, and of models on GPUs
    disk, memory and what does not fit. A row whose setting is not chosen yet (`tune:`) is priced as the mean of its
    draws.

    Runs nothing but, where a laptop store holds no run on the same data, a probe of two steps."""
    from tepo.common.errors import UserError
    from tepo.studies.plan_studies import plan_all
    from tepo.studies.tuning_result import undecided
    from tepo_cli.screen import say_wrapped
    from tepo_cli.show_plan import count, show_power_line, show_price, show_units

    if brief and verbose:
        raise UserError("a plan that is both short and long", where="--brief --verbose", fix="leave out one of them")
    if scale == "laptop" and (card or gpus):
        raise UserError("a plan on the laptop takes no GPU", where="--card, --gpus", fix="--scale single_gpu or paper")
    planned = plan_all(studies, scale, store=store, seeds=parse_seeds(seeds), overrides=row_overrides(override, data))
    facts = None
    if records:
        from tepo.studies.planned_facts import read_facts

        planned, facts = read_facts(planned, scale, parse_seeds(seeds), records=True)
    units = [unit for _, units in planned for unit in units]
    if override:  # else torch need not be imported: the study's own settings were checked when they were shipped
        from tepo.launch.unit_checks import check_rows

        check_rows(units)
    later = undecided(planned, scale, parse_seeds(seeds))
    hours = []
    if scale != "laptop":
        from tepo_cli.show_fit import answer, hours_on, show_cards, show_disk, show_fits

        hours = hours_on(units, card, gpus)
        said = f": {answer(units, hours, gpus)}" if hours else ""
        say_wrapped(count(units, *later) + said)
    show_price(units, scale, store, *later)
    for tune in filter(None, (study.tune_at(scale) for study, _ in planned)):
        for line in tune.gap_lines:
            say_wrapped(line)
    show_power_line(planned, scale, facts)
    if scale != "laptop":
        show_disk(units)
    if brief:
        return
    if scale != "laptop":
        show_cards(units, hours, gpus)
    show_units(units, rows=not verbose)
    if scale != "laptop":
        show_fits(units, card, gpus, verbose=verbose)


def power(
    studies: Annotated[list[str], typer.Argument(help="Studies: table1, panel-e …; the largest family counts.")],
    difference: Annotated[float, typer.Option(help="The difference to find, in points.", min=0.01, max=100)] = 2.0,
    scale: Scale = "laptop",
    seeds: Seeds = None,
    store: Store = Path("runs"),
    data: Data = None,
    override: SetAsRun = None,
    records: Records = False,
) -> None:
    """Show the seeds and problems that a difference needs.

    It is to be found with 80%, at the test and correction of the verdicts. Also shown is the smallest difference that
    the planned seeds find. Estimated from rows in the store with two seeds or more; runs nothing."""
    from tepo.studies.plan_studies import plan_all
    from tepo_cli.show_power import show_power

    overrides = row_overrides(override, data)
    planned = plan_all(studies, scale, store=store, seeds=parse_seeds(seeds), overrides=overrides)
    show_power(*filled(planned, records, store, scale, parse_seeds(seeds)), difference)


def claims(
    names: Annotated[
        list[str] | None, typer.Argument(help="Claims to run with --run (default: all).", show_default=False)
    ] = None,
    store: Store = Path("runs"),
    jobs: Jobs = JOBS,
    format: Format = "terminal",
    records: Records = False,
    trust: Trust = False,
    run: Annotated[bool, typer.Option("--run", help="Run what is missing; without it nothing is run.")] = False,
) -> None:
    """Show the registered claims with their verdicts.

    They are those that ship and those of experiments/claims.yaml in a folder of TEPO_PATH, each with its region, its
    difference and, when all of its runs are there, its verdict. The family is always the whole batch."""
    from tepo.analysis.claim_outcomes import judge_claims
    from tepo.analysis.claims_table import claims_table
    from tepo.common.errors import unknown_name
    from tepo.launch.run_units import Slots, run_units
    from tepo.reporting.tables.render import check_format
    from tepo.store.find_run import costs
    from tepo.studies.claims import SCALE, claim_files, load_claims, study_of
    from tepo.studies.plan_studies import plan_studies
    from tepo.studies.planned_facts import read_facts
    from tepo_cli.study_outputs import show_table

    check_format(format)
    loaded = load_claims()
    testable = [claim.name for claim in loaded.testable]
    for name in names or ():
        if name not in testable:
            where = ", ".join(map(str, claim_files().values()))
            raise unknown_name("claim that can be run", name, testable, where=where)
    planned = plan_studies([study_of(claim) for claim in loaded.testable], SCALE, store=store)
    planned, facts = read_facts(planned, SCALE, records=records)
    if run:
        wanted = [unit for study, units in planned if study.name in (names or testable) for unit in units]
        run_units(wanted, Slots(jobs=jobs))
        planned, facts = read_facts(planned, SCALE, records=records)
    units = [units for _, units in planned]
    table = claims_table(loaded, judge_claims(loaded, units, facts), costs(store))
    show_table(table, [unit for part in units for unit in part], format)
