"""`tepo power`: what differences a study can find, and what a wanted one needs."""

from pathlib import Path
from typing import Annotated

import typer

from tepo_cli.options import Data, Records, Scale, Seeds, SetAsRun, Store, filled, parse_seeds, row_overrides


def power(
    studies: Annotated[list[str], typer.Argument(help="Studies whose comparisons are one family: table1, panel-e …")],
    difference: Annotated[float, typer.Option(help="The difference to find, in points.", min=0.01, max=100)] = 2.0,
    scale: Scale = "laptop",
    seeds: Seeds = None,
    store: Store = Path("runs"),
    data: Data = None,
    override: SetAsRun = None,
    records: Records = False,
) -> None:
    """Show the seeds and problems that a difference needs to be found with 80%, at the test and correction of the
    verdicts, and the smallest difference that the planned seeds find. Estimated from rows in the store with two seeds
    or more; runs nothing."""
    from tepo.studies.plan_studies import plan_all
    from tepo_cli.show_power import show_power

    overrides = row_overrides(override, data)
    planned = plan_all(studies, scale, store=store, seeds=parse_seeds(seeds), overrides=overrides)
    planned = filled(planned, records, store, scale, parse_seeds(seeds))
    show_power(planned, difference)
