"""`tepo reproduce`: every table of the papers, then the page."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tepo_cli.options import (
    JOBS,
    Data,
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
        Path | None, typer.Option(help="Also write the tables and verdicts as Markdown, e.g. docs/results-laptop.md.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan; run nothing (`tepo plan` prices it).")
    ] = False,
) -> None:
    """Regenerate the papers' tables and figures and a page about all of it; rows that tables share are trained once."""
    from tepo.launch.run_units import run_planned
    from tepo.studies.plan_studies import plan_all
    from tepo_cli.show_plan import show_jobs, show_plan
    from tepo_cli.study_outputs import check_outputs, write_outputs

    check_outputs(out, results)
    where = slots(launcher, jobs, gpus, slurm, partition=partition, nodes=nodes, minutes=minutes)
    overrides = row_overrides(override, data)
    chosen = parse_seeds(seeds)
    plan = partial(plan_all, studies or STUDIES, scale, store=store, seeds=chosen, overrides=overrides)
    if not records and not dry_run:
        write_outputs(run_planned(plan, scale, where), scale, out, results)
        return
    planned = plan()
    if records:
        from tepo.studies.records.read import with_records

        planned = with_records(planned, scale, chosen)
    if dry_run:
        units = [unit for _, units in planned for unit in units]
        show_plan(units)
        show_jobs(units, where, store)
        return
    write_outputs(planned, scale, out, results)
