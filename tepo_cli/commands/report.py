"""`tepo report`: the page, from the store."""

from pathlib import Path
from typing import Annotated

import typer

from tepo_cli.commands.reproduce import STUDIES
from tepo_cli.options import Data, Records, Scale, Seeds, SetAsRun, Store, filled, parse_seeds, row_overrides


def report(
    studies: Annotated[
        list[str] | None,
        typer.Argument(help=f"Studies on the page, or claims (default: {' '.join(STUDIES)}).", show_default=False),
    ] = None,
    scale: Scale = "laptop",
    seeds: Seeds = None,
    store: Store = Path("runs"),
    data: Data = None,
    override: SetAsRun = None,
    records: Records = False,
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    results: Annotated[Path | None, typer.Option(help="Also write the tables and verdicts as Markdown.")] = None,
) -> None:
    """Write one self-contained HTML page from what the store holds: tables, curves, configurations, tokens. Never
    trains."""
    from tepo.studies.plan_studies import plan_all
    from tepo_cli.study_outputs import check_outputs, write_outputs

    check_outputs(out, results)
    planned = plan_all(
        studies or STUDIES,
        scale,
        store=store,
        seeds=parse_seeds(seeds),
        overrides=row_overrides(override, data),
    )
    planned = filled(planned, records, store, scale, parse_seeds(seeds))
    write_outputs(planned, scale, out, results)
