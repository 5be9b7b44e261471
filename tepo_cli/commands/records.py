"""`tepo records`: finished runs as small files, from which everything can be shown and some of it checked."""

from pathlib import Path
from typing import Annotated

import typer

from tepo_cli.cli_options import Jobs, Scale, Seeds, Set, Store, Trust, check_store_exists, seed_numbers

app = typer.Typer(help="Finished runs as small records: write, show, rerun.", no_args_is_help=True)
_OUT = "Where the folders go (default: records/ beside the study's folder)."
Names = Annotated[
    list[str] | None, typer.Argument(help="Studies, or claims (default: all that have records).", show_default=False)
]


@app.command()
def write(
    names: Annotated[list[str], typer.Argument(help="Studies, or claims.")],
    scale: Scale = None,
    seeds: Seeds = None,
    store: Store = Path("runs"),
    override: Set = None,
    out: Annotated[Path | None, typer.Option(help=_OUT, file_okay=False)] = None,
) -> None:
    """Record the finished runs of a store, in a folder for each study.

    A folder keeps its records of runs that the store does not hold, so that a study can be run in parts on several
    machines.

    \b
    tepo records write panel-e --out records"""
    from tepo.common.errors import UserError
    from tepo.common.text import counted
    from tepo.studies.record_runs import folder_of, plan_by_folder, record_study

    check_store_exists(store)
    run_count = 0
    for name, planned in plan_by_folder(names, scale, store, seed_numbers(seeds), override or ()).items():
        path = out / name if out else folder_of(name)
        written = record_study(path, planned)
        run_count += written.recorded + written.elsewhere
        summary = (
            f"{counted(written.recorded, 'run')} from the store, {written.kept} kept, {written.missing} not recorded"
            + (f", {written.elsewhere} on record elsewhere" if written.elsewhere else "")
        )
        if written.recorded:
            size = sum(file.stat().st_size for file in path.iterdir()) / 1000
            typer.echo(f"{path}: {summary}, {size:.1f} kB")
        else:
            typer.echo(f"{name}: {summary}; nothing written")
    if not run_count:
        what = f"no finished and measured run of {' '.join(names)}"
        raise UserError(what, where=f"store {store}", fix=f"tepo ablate {names[0]}")


@app.command()
def show(names: Names = None, scale: Scale = None) -> None:
    """Show what is recorded.

    A line a folder, or with names a line a run, and whether it counts as one of today's plan; then the content is
    compared with its hash too.

    \b
    tepo records show
    tepo records show panel-e"""
    from tepo_cli.show_records import show_folders, show_recorded

    if names:
        show_recorded(names, scale)
    else:
        show_folders()


@app.command()
def check(
    names: Names = None,
    runs: Annotated[int, typer.Option(help="How many recorded runs are run anew.", min=1)] = 1,
    draw: Annotated[int | None, typer.Option(help="Seed of the draw (default: another one each time).", min=0)] = None,
    scale: Scale = None,
    jobs: Jobs = 1,
    trust: Trust = False,
) -> None:
    """Train some recorded runs again and compare the verdicts.

    Draws runs at random, trains them in a separate store and compares them problem by problem. Exit code 1 if any
    differ. Another kind of CPU may round differently.

    \b
    tepo records check panel-e"""
    import secrets
    import shutil
    import tempfile

    from tepo.common.errors import RunFailed, UserError
    from tepo.launch.run_units import Slots, run_units
    from tepo.reporting.progress import say
    from tepo.studies.planned_facts import read_facts
    from tepo.studies.record_runs import agreement, anew, drawn, plan_by_folder, recorded_names
    from tepo.studies.study import USUAL
    from tepo_cli.show_records import show_agreement

    seed = secrets.randbelow(2**31) if draw is None else draw
    plans = plan_by_folder(names or recorded_names(scale or USUAL), scale, Path("runs"))
    chosen, recorded = drawn([part for plan in plans.values() for part in plan], runs, seed)
    units = [unit for _, unit in chosen]
    if not units:
        raise UserError("no record is of a run of today's plan", fix="tepo records show NAME")
    store = Path(tempfile.mkdtemp(prefix="tepo-records-"))
    say(f"drawn with --draw {seed}, run in {store}: {', '.join(f'{unit.label} seed {unit.seed}' for unit in units)}")
    planned = [(study, [anew(unit, store)]) for study, unit in chosen]
    run_units([unit for _, again in planned for unit in again], Slots(jobs=jobs))
    _, again = read_facts(planned)
    show_agreement(units, recorded, again)
    if differing := sum(not agreement(unit, recorded, again) for unit in units):
        what = f"{differing} of {len(units)} runs differ from their records"
        fix = "the kind of CPU and the versions that made the record; others may round otherwise"
        raise RunFailed(what, where=str(store), fix=fix)
    shutil.rmtree(store)
