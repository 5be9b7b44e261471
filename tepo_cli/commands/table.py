"""`tepo table`: render from the store; never trains."""

from pathlib import Path
from typing import Annotated

import typer

from tepo_cli.options import Data, Format, Scale, Seeds, Store, check_store_exists, parse_seeds


def table(
    name: Annotated[str, typer.Argument(help="panel-e, table1, or just 1 … 4.")],
    scale: Scale = "laptop",
    seeds: Seeds = None,
    store: Store = Path("runs"),
    format: Format = "terminal",
    data: Data = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="The overrides that the study was run with.")
    ] = None,
) -> None:
    """Render a table from what the store holds; a row that was not run is a dash."""
    from tepo.reporting.render import check_format
    from tepo.studies.plan_all import plan_all
    from tepo_cli.study_runs import show_tables

    check_format(format)
    chosen = [*(override or []), *([f"data={data}"] if data else [])]
    planned = plan_all([name], scale, store=store, seeds=parse_seeds(seeds), overrides=chosen)
    check_store_exists(store)
    for study, units in planned:  # a table of panels: panel by panel
        show_tables(study, scale, units, format)
