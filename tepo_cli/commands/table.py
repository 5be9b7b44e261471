"""`tepo table`: render from the store; never trains."""

from pathlib import Path
from typing import Annotated

import typer

from tepo_cli.options import Data, Format, Records, Scale, Seeds, SetAsRun, Store, filled, parse_seeds, row_overrides


def table(
    name: Annotated[str, typer.Argument(help="panel-e, table1, or just 1 … 4.")],
    scale: Scale = "laptop",
    seeds: Seeds = None,
    store: Store = Path("runs"),
    format: Format = "terminal",
    data: Data = None,
    override: SetAsRun = None,
    records: Records = False,
) -> None:
    """Render a table from what the store holds; a row that was not run is a dash."""
    from tepo.reporting.tables.render import check_format
    from tepo.studies.plan_studies import plan_all
    from tepo_cli.study_outputs import show_tables

    check_format(format)
    overrides = row_overrides(override, data)
    planned = plan_all([name], scale, store=store, seeds=parse_seeds(seeds), overrides=overrides)
    planned = filled(planned, records, store, scale, parse_seeds(seeds))
    show_tables(planned, scale, format)
