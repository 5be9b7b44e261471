"""Options that several commands share."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tepo.common import trust
from tepo.common.errors import UserError

if TYPE_CHECKING:
    from tepo.config.run_config import RunConfig
    from tepo.launch.run_units import Slots
    from tepo.store.facts import Facts
    from tepo.studies.plan import Unit
    from tepo.studies.plan_studies import Planned
    from tepo.studies.study import Study

Scale = Annotated[str, typer.Option(help="laptop, paper, or one of your own.")]
Seeds = Annotated[str | None, typer.Option(help="Comma-separated, e.g. 0,1,2 (default: the study's).")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs side by side, one thread (or --gpus) each.")]
JOBS = 1  # the same for every command: a laptop run takes one core, a GPU run what --gpus says
Store = Annotated[Path, typer.Option(help="Folder of runs.")]
Records = Annotated[
    bool, typer.Option("--records", help="Read what the store lacks from records; there need be no store.")
]
Format = Annotated[str, typer.Option(help="terminal, markdown, latex, csv or html.")]
Data = Annotated[
    str | None, typer.Option(help="Data of every row: an option of data=, or FILE.jsonl (default: the scale's).")
]


def _trusted(given: bool) -> bool:
    trust.say(trusts=given)
    return given


Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        callback=_trusted,
        help="Execute Python that a run or study names, of its model or objective, and reach servers that it names.",
    ),
]
_LINES = "A line of the formula, e.g. --formula 'J=min(w, clip(w, 1 - low, 1 + high))*A'; may be repeated."
Lines = Annotated[list[str] | None, typer.Option("--formula", metavar="LINE", help=_LINES, show_default=False)]
Set = Annotated[list[str] | None, typer.Option("--set", help="Override for every row, e.g. --set train.steps=20.")]
SetAsRun = Annotated[list[str] | None, typer.Option("--set", help="The overrides that the studies were run with.")]
Launcher = Annotated[str, typer.Option(help="local or slurm.")]
Partition = Annotated[str | None, typer.Option(help="Slurm partition.")]
Gpus = Annotated[
    int | None, typer.Option(min=0, help="GPUs of a node for each run; 0: the CPU, or all that are visible.")
]
Nodes = Annotated[int | None, typer.Option(min=1, help="Nodes for each run (slurm).")]
Minutes = Annotated[
    int | None, typer.Option(min=1, help="Time limit of a job (slurm); a longer run is requeued and goes on.")
]
Slurm = Annotated[
    list[str] | None,
    typer.Option("--slurm", metavar="KEY=VALUE", help="mem=900G, account=…, sbatch.reservation=…: as in slurm.yaml."),
]


def slots(launcher: str, jobs: int, gpus: int | None, slurm: list[str] | None, **given: str | int | None) -> "Slots":
    """Slots for runs: local ones, or Slurm. given: partition, nodes and minutes. Raises UserError for what the launcher
    has no use for."""
    from tepo.launch.run_units import Slots
    from tepo.launch.slurm_options import slurm_options

    if launcher == "slurm":
        return Slots(launcher, jobs, slurm=slurm_options({"gpus": gpus, **given}, slurm or ()))
    idle = [f"--{name}" for name, value in {**given, "slurm": slurm}.items() if value]
    chosen = Slots(launcher, jobs, gpus or 0)
    if idle:
        raise UserError(f"{' and '.join(idle)} without Slurm", where="the command line", fix="add --launcher slurm")
    return chosen


def formula_words(lines: Sequence[str] | None) -> list[str]:
    """Overrides of `--formula NAME=EXPRESSION`. Raises UserError for what has no name."""
    for line in lines or ():
        if not line.partition("=")[0].strip().isidentifier():
            raise UserError("a line has a name", where=f"--formula {line!r}", fix="--formula 'J=min(w, 2)*A'")
    return [f"objective.{line.strip()}" for line in lines or ()]


def row_overrides(override: list[str] | None, data: str | None) -> list[str]:
    """Overrides of every row by --set and --data; --data comes last and wins."""
    words = [*(override or []), *([f"data={data}"] if data else [])]
    trust.say(words)
    return words


def check_store_exists(store: Path) -> None:
    """For commands that only read the store. Raises UserError when it is no folder."""
    if not store.is_dir():
        raise UserError(
            "no store there" if not store.exists() else "the store is not a folder",
            where=str(store),
            fix="--store DIR; `tepo ablate NAME` fills one",
        )


def filled(
    planned: "Planned", records: bool, store: Path, scale: str, seeds: list[int] | None
) -> "tuple[list[tuple[Study, list[Unit]]], Facts]":
    """The plan of a command that runs nothing, and what is known of its runs: from the store, and with --records from
    records.

    Raises UserError where there is neither."""
    if not records:
        check_store_exists(store)
    from tepo.studies.planned_facts import read_facts

    return read_facts(planned, scale, seeds, records=records)


def parse_seeds(text: str | None) -> list[int] | None:
    """`0,1,2` as integers; None stays None."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"not a list of seeds: {text!r}", fix="write --seeds 0,1,2") from None


def compose_run(overrides: Sequence[str], store: Path | None) -> "RunConfig":
    """The configuration of `tepo train` and `tepo base`.

    The store does not go through Hydra, whose grammar has no ü, comma or bracket.
    """
    from dataclasses import replace

    from tepo.config.compose import compose

    config = compose(overrides)
    return replace(config, store=str(store)) if store else config
