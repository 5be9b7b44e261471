"""`tepo board`: all methods under one protocol, and a stranger's records tried again here."""

from pathlib import Path
from typing import Annotated

import typer

from tepo_cli.cli_options import Format, Jobs

_OFF = (1, 2, 5)  # points by which records are too high, for the power of the check

app = typer.Typer(help="All methods under one protocol; a stranger's method checked.")


@app.callback(invoke_without_command=True)
def board(
    context: typer.Context,
    study: Annotated[
        list[str] | None, typer.Option("--with", help="A study of your own on TEPO_PATH.", show_default=False)
    ] = None,
    store: Annotated[Path, typer.Option(help="Read before records.")] = Path("runs"),
    format: Format = "terminal",
) -> None:
    """Print the board: the shipped methods on record, ranked by what can be told apart.

    \b
    tepo board
    tepo board --with mine
    tepo board check THEIRS/experiments/theirs.yaml --runs 2"""
    if context.invoked_subcommand is not None:
        return
    from tepo.reporting.tables.render import check_format
    from tepo_cli.study_outputs import board_of, show_table

    check_format(format)
    show_table(board_of(study or (), store), (), format)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="The study in somebody's folder, with his formulas and records.")],
    runs: Annotated[int, typer.Option(help="How many recorded runs are run anew.", min=1)] = 2,
    draw: Annotated[int | None, typer.Option(help="Seed of the draw (default: another one each time).", min=0)] = None,
    jobs: Jobs = 1,
) -> None:
    """Train some of a stranger's runs again and say whether his records fit.

    Reads the study, the formulas and the records of his folder and executes nothing of it but formulas. Exit code 1 if
    a run falls out of the 95% prediction interval of his records.

    \b
    tepo board check THEIRS/experiments/theirs.yaml --runs 2"""
    import secrets
    import shutil
    import tempfile

    from tepo.analysis.board import FEWEST, Tried, averages, caught, predicted, submission
    from tepo.common.errors import RunFailed, UserError
    from tepo.common.grouping import grouped
    from tepo.common.text import counted
    from tepo.launch.run_units import Slots, run_units
    from tepo.reporting.progress import say
    from tepo.store.records import check_content
    from tepo.studies.plan import row_key
    from tepo.studies.plan_studies import plan_studies
    from tepo.studies.planned_facts import Records, facts_of, read_facts
    from tepo.studies.record_runs import anew, drawn
    from tepo.studies.study import USUAL
    from tepo_cli.screen import say_wrapped, show

    seed = secrets.randbelow(2**31) if draw is None else draw
    study, folder = submission(file), file.resolve().parents[1] / "records" / file.stem
    if not folder.is_dir():
        raise UserError("the method has no records", where=str(folder), fix=f"tepo records write {file.stem}")
    check_content(folder)
    planned, records = plan_studies([study], USUAL, store=Path("runs")), Records.found([folder])
    chosen, _ = drawn(planned, runs, seed, records)
    held = [unit for unit in records.recorded(*planned[0]) if unit.trains]
    known = averages(held, facts_of([(study, held)], records))
    spread = grouped((row, value) for (row, _), value in known.items())
    few = [row for row, values in spread.items() if len(values) < FEWEST]
    units = [unit for _, unit in chosen if unit.trains]
    if few or not units:
        what = f"{', '.join(few) or 'no row'}: fewer than {FEWEST} runs of today's protocol are on record"
        raise UserError(what, where=str(folder), fix=f"tepo ablate {file.stem}, then tepo records write {file.stem}")
    store = Path(tempfile.mkdtemp(prefix="tepo-board-"))
    say(f"drawn with --draw {seed}, run in {store}: {', '.join(unit.title for unit in units)}")
    again = [anew(unit, store) for unit in units]
    run_units(again, Slots(jobs=jobs))
    here = averages(again, read_facts([(study, again)])[1])
    tried = []
    for unit in units:
        key = row_key(unit), unit.seed
        tried.append(Tried(unit, known[key], here[key], *predicted(spread[key[0]], len(units))))
    lines = []
    for one in tried:
        numbers = f"{one.recorded:.1f}", f"{one.again:.1f}", f"{one.low:.1f} to {one.high:.1f}"
        lines.append((one.unit.label, str(one.unit.seed), *numbers, "fits" if one.fits else "does not fit"))
    show(("row", "seed", "recorded", "here", "interval", ""), lines, wrapped=("row",))
    recorded = min(map(len, spread.values()))
    deviation = max((sum((x - sum(v) / len(v)) ** 2 for x in v) / (len(v) - 1)) ** 0.5 for v in spread.values())
    alarms, *chances = (f"{100 * caught(recorded, len(units), off, deviation):.0f}%" for off in (0, *_OFF))
    too_high = ", ".join(f"{chance} at {counted(off, 'point')}" for chance, off in zip(chances, _OFF, strict=True))
    say_wrapped(f"Right records fail this check in {alarms} of cases; those that are too high fail it in {too_high}.")
    if off := sum(not one.fits for one in tried):
        raise RunFailed(f"{off} of {len(tried)} runs lie outside of what the records say", where=str(store))
    shutil.rmtree(store)
