"""`tepo table`, `figure` and `report`: what a store says, never trains."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tepo.common.errors import UserError, unknown_name
from tepo_cli.cli_options import Asked, Format, Page, Records, Results, check_store_exists, unbundled

if TYPE_CHECKING:
    from tepo.reporting.charts.style import Chart, NamedChart
    from tepo.store.facts import Facts
    from tepo.studies.plan import Unit
    from tepo.studies.study import Study


@unbundled
def table(
    name: Annotated[
        str, typer.Argument(help="panel-e, table1, or just 1 … 4; claims: the registered ones; gains: of papers.")
    ],
    asked: Asked,
    format: Format = "terminal",
    records: Records = False,
) -> None:
    """Print a study's table from what the store holds.

    A row that was not run is a dash. `claims` are those of the scale that ship and those of experiments/claims.yaml in
    a folder of TEPO_PATH, each with its region, its difference and, when all of its runs are there, its verdict.
    `gains` are the differences to their baselines that papers print, beside ours.

    \b
    tepo table panel-e --records
    tepo table table1 --records --format latex"""
    from tepo.reporting.tables.render import check_format
    from tepo.studies.study import CLAIMS, USUAL
    from tepo_cli.study_outputs import GAINS, gains, show_claims, show_table, show_tables

    check_format(format)
    if name == CLAIMS:
        show_claims(asked.store, asked.scale or USUAL, format, records=records)
    elif name == GAINS:
        show_table(gains(asked, records), (), format)
    else:
        show_tables(*asked.read([name], records), format)


@unbundled
def figure(
    name: Annotated[
        str,
        typer.Argument(
            help="A study (stability, panel-e), board, gains, 2a 2b 3a 3b v1-4 v1-5 gtpo-1 … gtpo-4, or `all`."
        ),
    ],
    asked: Asked,
    format: Annotated[str, typer.Option(help="svg, pdf, png, html or json (the Vega-Lite specification).")] = "svg",
    records: Records = False,
    against: Annotated[
        str, typer.Option(help="What curves are drawn against: steps, samples, tokens, time, kl.")
    ] = "steps",
    out: Annotated[Path, typer.Option(help="Folder for the files.", file_okay=False)] = Path("figures"),
) -> None:
    """Draw figures from what the store holds.

    Of a study all that was measured: differences, maps, curves. Of the papers one, or `all` whose rows were
    run; it names the others, and ends with exit code 1 if there are any. It never trains (`tepo ablate` does).

    \b
    tepo figure panel-e --records --out figures"""
    from tepo.analysis.charts import board_chart, gains_chart, study_charts
    from tepo.analysis.tables import study_table
    from tepo.reporting.charts.curves import AXES
    from tepo.reporting.charts.style import FORMATS
    from tepo.studies.plan_studies import scales_text
    from tepo.studies.study import file_stem, load_study, study_names
    from tepo_cli.study_outputs import BOARD, GAINS, board_of, gains

    if against not in AXES:
        raise unknown_name("axis", against, AXES, where="--against")
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS, where="--format")
    if name in (GAINS, BOARD):
        chart = gains_chart(gains(asked, records)) if name == GAINS else board_chart(board_of((), asked.store))
        _save(chart, name, out / format)
        return
    papers, stem, place = [figure.name for figure in load_study("figures").figures], file_stem(name), out / format
    if name in (*papers, "all"):
        ((study, units),), facts = asked.read(["figures"], records)
        _paper_figures(papers if name == "all" else [name], study, units, facts, place, against)
        return
    if stem not in study_names():
        raise unknown_name("figure", name, [*papers, "all", *study_names()])
    planned, facts = asked.read([name], records)
    charts: list[NamedChart] = []
    for study, units in planned:
        measured_table = study_table(study, units, facts)
        charts += study_charts(study, units, facts, measured_table, against)
    if not charts:
        fix = f"tepo ablate {name} --scale {scales_text(planned)}"
        raise UserError(f"nothing of {stem} was run", where=f"store {asked.store}", fix=fix)
    if against != "steps" and all(named_chart.kind != "curves" for named_chart in charts):
        what, fix = f"no run of {stem} holds what {against!r} counts", "train them with this version"
        raise UserError(what, where="--against", fix=fix)
    for named_chart in charts:
        _save(named_chart.chart, named_chart.name, place)


def _paper_figures(
    names: list[str], study: "Study", units: "list[Unit]", facts: "Facts", place: Path, against: str
) -> None:
    """Draw what can be drawn of several; a single one that cannot be is the mistake. place: as in `_save`."""
    from tepo.analysis.charts import paper_chart

    missing: list[UserError] = []
    suffix = "" if against == "steps" else f"-{against}"
    for chosen in names:
        try:
            _save(paper_chart(study, chosen, units, facts, against), f"{chosen}{suffix}", place)
        except UserError as error:
            missing.append(error)
    if missing and len(names) == 1:
        raise missing[0]
    if missing:
        lines = [f"{len(missing)} of {len(names)} figures were not drawn:", *(f"  {error.what}" for error in missing)]
        raise UserError("\n".join(lines), where=missing[0].where, fix=missing[0].fix, exit_code=1)


def _save(chart: "Chart", name: str, place: Path) -> None:
    """place: the folder, and below it the format."""
    from tepo.common.files import write_atomic
    from tepo.reporting.charts.style import drawn

    path = place.parent / f"figure-{name}.{place.name}"
    write_atomic(path, drawn(chart, place.name), "--out DIR")
    typer.echo(path)


@unbundled
def report(
    asked: Asked,
    studies: Annotated[
        list[str] | None,
        typer.Argument(help="Studies on the page, or claims (default: all that was measured).", show_default=False),
    ] = None,
    records: Records = False,
    out: Page = Path("report.html"),
    results: Results = None,
) -> None:
    """Write one HTML page from what the store holds.

    It is self-contained: tables, charts, responses, tokens. Never trains.

    \b
    tepo report panel-e --out page.html
    tepo report --records"""
    # before numpy is there: its products are small, and threads that wait for each other cost more than they save
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from tepo.reporting.progress import say
    from tepo.studies.planned_facts import measured_studies
    from tepo_cli.study_outputs import check_outputs, write_outputs

    check_outputs(out, results)
    store = asked.store
    if studies:
        say(f"planning: {' '.join(studies)}")
    else:
        if not records:
            check_store_exists(store, or_records=True)
        say("looking for what was measured")
        studies = measured_studies(asked.scale, store, asked.chosen_seeds, asked.overrides, records=records)
        if studies:
            say(f"on the page: {' '.join(studies)}")
    planned, facts = asked.read(studies, records)
    if not studies or not facts.runs["done"].any():
        what = f"nothing of {' '.join(studies)} was measured" if studies else "no study has two measured rows"
        fix = f"tepo ablate {studies[0] if studies else 'panel-e'}{'' if records else ', or --records'}"
        raise UserError(what, where=f"store {store}", fix=fix)
    write_outputs(planned, facts, out, results)
