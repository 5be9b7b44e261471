"""`tepo claims`: what was claimed before it was tested, and how it came out."""

from pathlib import Path
from typing import Annotated

import typer

from tepo_cli.options import JOBS, Format, Jobs, Records, Store, Trust


def claims(
    names: Annotated[
        list[str] | None, typer.Argument(help="Claims to run (default: all that can be).", show_default=False)
    ] = None,
    store: Store = Path("runs"),
    jobs: Jobs = JOBS,
    format: Format = "terminal",
    records: Records = False,
    trust: Trust = False,
    run: Annotated[bool, typer.Option("--run", help="Run what is missing; without it nothing is run.")] = False,
) -> None:
    """Show the claims of experiments/claims.yaml: plan, price and dates of each, and its verdict when all of its runs
    are there. The family is always all of them."""
    from tepo.common.errors import unknown_name
    from tepo.launch.run_units import Slots, run_units
    from tepo.reporting.tables.render import check_format
    from tepo.results.claim_outcomes import judge_claims
    from tepo.results.claims_table import claims_table
    from tepo.store.cost import costs
    from tepo.studies.claims import SCALE, load_claims, study_of
    from tepo.studies.plan_studies import plan_studies
    from tepo_cli.study_outputs import show_table

    check_format(format)
    loaded = load_claims()
    testable = {claim.name: claim for claim in loaded.testable}
    for name in names or ():
        if name not in testable:
            raise unknown_name("claim that can be run", name, testable, where=str(loaded.path))
    planned = plan_studies([study_of(claim) for claim in testable.values()], SCALE, store=store)
    if records:
        from tepo.studies.records.read import with_records

        planned = with_records(planned, SCALE)
    if run:
        run_units(
            [unit for study, units in planned if study.name in (names or testable) for unit in units],
            Slots(jobs=jobs),
        )
    units = [units for _, units in planned]
    table = claims_table(loaded, judge_claims(loaded, units), costs(store))
    show_table(table, [unit for part in units for unit in part], format)
