"""`tepo audit`: what follows from the paper's printed tables, and what does not."""

from typing import Annotated

import typer


def audit(
    all_rows: Annotated[
        bool, typer.Option("--all", help="Show every row's average, not only those that do not follow.")
    ] = False,
) -> None:
    """Recompute the paper's averages, differences and ranks from its own columns."""
    from tepo.reporting.paper import audit as library
    from tepo.reporting.paper.audit_view import render
    from tepo.reporting.progress import Screen
    from tepo_cli.screen import screen_width

    Screen(width=screen_width()).print(render(library.audit(), every_row=all_rows))
