"""`tepo check-objective`: whether what must hold for every objective holds for one."""

from typing import Annotated

import typer

_WHAT = "An objective: NAME of objective/NAME.yaml in a folder of TEPO_PATH, or a shipped one."
_SETTINGS = "Settings of it, for example surrogate.width=0.3."


def check_objective(
    objective: Annotated[str, typer.Argument(help=_WHAT)],
    settings: Annotated[list[str] | None, typer.Argument(help=_SETTINGS, show_default=False)] = None,
) -> None:
    """Check that an objective's gradient depends on nothing but its data, is a gradient, and is what it says it is.

    Exit code 1 where a check fails, 2 where the objective cannot be read."""
    from rich.table import Table

    from tepo.objectives.testing.checks import check_objective as checked
    from tepo_cli.named_objective import named_objective
    from tepo_cli.screen import fixed, show

    found = named_objective(objective, settings or ())
    table = Table(fixed("check"), fixed("result"), "what", title=f"objective {found.name}")
    checks = checked(found)
    for check in checks:
        table.add_row(check.name, "fail" if check.wrong else "pass", check.wrong or check.what)
    show(table)
    if failed := sum(bool(check.wrong) for check in checks):
        typer.echo(f"{failed} of {len(checks)} checks fail: docs/library.md says what each means", err=True)
        raise typer.Exit(1)
