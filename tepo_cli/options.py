"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from tepo.errors import UserError

Scale = Annotated[str, typer.Option(help="laptop or paper.")]
Seeds = Annotated[str | None, typer.Option(help="Comma-separated, e.g. 0,1,2 (default: the study's).")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs side by side, one thread each.")]
Store = Annotated[Path, typer.Option(help="Folder of runs.")]
Format = Annotated[str, typer.Option(help="terminal, markdown, latex, csv or html.")]
Data = Annotated[str | None, typer.Option(help="Data group for every row, e.g. laptop_sparse.")]


def parse_seeds(text: str | None) -> list[int] | None:
    """`0,1,2` as integers; None stays None."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"not a list of seeds: {text!r}", fix="write --seeds 0,1,2") from None
