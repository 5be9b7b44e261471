"""`tepo ablate`: plan a panel or table, run what is missing, measure, render."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tepo_cli.options import (
    JOBS,
    Data,
    Format,
    Gpus,
    Jobs,
    Launcher,
    Minutes,
    Nodes,
    Partition,
    Scale,
    Seeds,
    Set,
    Slurm,
    Store,
    Trust,
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
    trust: Trust = False,
    launcher: Launcher = "local",
    partition: Partition = None,
    gpus: Gpus = None,
    nodes: Nodes = None,
    minutes: Minutes = None,
    slurm: Slurm = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; run nothing.")] = False,
) -> None:
    """Run one study: train and measure what the store does not have yet, then print its table beside the paper's. One
    with `tune:` tries its settings first, then runs each row at the one that validation chose."""
    from tepo.launch.run_units import run_planned
    from tepo.reporting.tables.render import check_format
    from tepo.studies.plan_studies import plan_all
    from tepo_cli.show_plan import show_jobs, show_plan
    from tepo_cli.study_outputs import show_tables

    check_format(format)  # now, not after an hour of training
    where = slots(launcher, jobs, gpus, slurm, partition=partition, nodes=nodes, minutes=minutes)
    overrides = row_overrides(override, data)
    plan = partial(plan_all, [study], scale, store=store, seeds=parse_seeds(seeds), overrides=overrides)
    if dry_run:
        units = [unit for _, units in plan() for unit in units]
        if override:
            from tepo.launch.unit_checks import check_rows  # imports torch

            check_rows(units)
        show_plan(units)
        show_jobs(units, where, store)
        return
    planned = run_planned(plan, scale, where)
    show_tables(planned, scale, format)
