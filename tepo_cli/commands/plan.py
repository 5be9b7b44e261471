"""`tepo plan`: what a study would run, what is there already, and what it costs."""

from pathlib import Path
from typing import Annotated

import typer

from tepo_cli.options import Data, Records, Scale, Seeds, Set, Store, Trust, parse_seeds, row_overrides


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
    brief: Annotated[bool, typer.Option("--brief", help="Totals only.")] = False,
) -> None:
    """Show runs and evaluations, what the store has, and a price with what it is based on; of models on
    GPUs disk, memory by part and what does not fit. A row whose setting is not chosen yet (`tune:`) is priced as the
    mean of its draws.

    Runs nothing but, where a laptop store holds no run on the same data, a probe of two steps."""
    from tepo.common.errors import UserError
    from tepo.studies.plan_studies import plan_all
    from tepo.studies.tuning_result import undecided_rows
    from tepo_cli.show_plan import show_plan, show_power_line, show_price

    if scale == "laptop" and (card or gpus):
        raise UserError("a plan on the laptop takes no GPU", where="--card, --gpus", fix="--scale single_gpu or paper")
    planned = plan_all(
        studies,
        scale,
        store=store,
        seeds=parse_seeds(seeds),
        overrides=row_overrides(override, data),
    )
    if records:
        from tepo.studies.records.read import with_records

        planned = with_records(planned, scale, parse_seeds(seeds))
    units = [unit for _, units in planned for unit in units]
    if override:  # else torch need not be imported: the study's own settings were checked when they were shipped
        from tepo.launch.unit_checks import check_rows

        check_rows(units)
    show_plan(units, brief=brief)
    show_price(units, scale, store, undecided_rows(planned, scale, parse_seeds(seeds)))
    show_power_line(planned)
    if scale != "laptop":
        from tepo_cli.show_disk import show_disk
        from tepo_cli.show_fit import show_fits

        show_disk(units)
        show_fits(units, card, gpus)
