"""`tepo list`: what can be run, the runs of a store, and those that train."""

from pathlib import Path
from typing import Annotated

import typer

from tepo_cli.cli_options import Store

_WATCH = "Follow the runs that train, with their curves, until Ctrl-C."


def listing(
    store: Store = Path("runs"),
    every: Annotated[bool, typer.Option("--all", help="Every run, one plain line each.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help=_WATCH)] = False,
) -> None:
    """List what can be run, and the runs in the store.

    Studies, objectives, models, data and benchmarks can be named. A name with a folder behind it is a file in a
    folder of TEPO_PATH.

    With --watch the runs that are being trained and those that have just ended are shown: start it beside a study. In a
    pipe it looks once.

    \b
    tepo list
    tepo list --watch"""
    from tepo_cli.show_runs import show_live_runs, show_names, show_runs

    if watch:
        show_live_runs(store)
    else:
        show_names()
        show_runs(store, every)
