"""`tepo table`, `figure`, `report` and `audit`: what a store or the paper says, never trains."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tepo_cli.cli_options import (
    Data,
    Format,
    Records,
    Scale,
    Seeds,
    SetAsRun,
    Store,
    filled,
    parse_seeds,
    row_overrides,
)
from tepo_cli.commands.studies import STUDIES

if TYPE_CHECKING:
    from tepo.reporting.figures import Figure
    from tepo.store.facts import Facts
    from tepo.studies.plan import Unit
    from tepo.studies.study import Study


def table(
    name: Annotated[str, typer.Argument(help="panel-e, table1, or just 1 … 4.")],
    scale: Scale = "laptop",
    seeds: Seeds = None,
    store: Store = Path("runs"),
    format: Format = "terminal",
    data: Data = None,
    override: SetAsRun = None,
    records: Records = False,
) -> None:
    """Print a study's table from what the store holds.

    A row that was not run is a dash."""
    from tepo.reporting.tables.render import check_format
    from tepo.studies.plan_studies import plan_all
    from tepo_cli.study_outputs import show_tables

    check_format(format)
    overrides = row_overrides(override, data)
    planned = plan_all([name], scale, store=store, seeds=parse_seeds(seeds), overrides=overrides)
    show_tables(*filled(planned, records, store, scale, parse_seeds(seeds)), scale, format)


def figure(
    name: Annotated[
        str, typer.Argument(help="2a 2b 3a 3b v1-1 v1-4 v1-5 gtpo-1 … gtpo-4, `all`, or a study: stability, tuned.")
    ],
    scale: Scale = "laptop",
    seeds: Seeds = None,
    store: Store = Path("runs"),
    data: Data = None,
    override: SetAsRun = None,
    records: Records = False,
    against: Annotated[
        str, typer.Option(help="What curves are drawn against: steps, samples, tokens, time, kl.")
    ] = "steps",
    out: Annotated[Path, typer.Option(help="Folder for the SVG and PNG files.")] = Path("figures"),
) -> None:
    """Draw a figure from what the store holds.

    It never trains (`tepo ablate figures` does). `all` draws the papers' figures whose rows were run, names the others,
    and ends with exit code 1 if there are any.
    A study with `vary:` or `tune:` has a figure of its name: accuracy over what varies, or at the settings tried."""
    from tepo.common.errors import unknown_name
    from tepo.reporting.figures.curves import AXES
    from tepo.studies.plan_studies import plan_all
    from tepo.studies.study import file_stem, load_study, study_names

    if against not in AXES:
        raise unknown_name("axis", against, AXES, where="--against")
    known = [figure.name for figure in load_study("figures").figures]
    paper = name in (*known, "all")
    if not paper and file_stem(name) not in study_names():
        raise unknown_name("figure", name, [*known, "all", *study_names()])
    overrides = row_overrides(override, data)
    planned = plan_all(
        ["figures" if paper else name], scale, store=store, seeds=parse_seeds(seeds), overrides=overrides
    )
    planned, facts = filled(planned, records, store, scale, parse_seeds(seeds))
    for study, units in planned:
        if paper:
            _paper_figures(known if name == "all" else [name], study, scale, units, facts, out, against)
        else:
            from tepo.analysis.figures import draw_study

            for drawn in draw_study(study, scale, units, facts):
                _save(drawn.figure, drawn.name, out)


def _paper_figures(
    names: list[str], study: "Study", scale: str, units: "list[Unit]", facts: "Facts", out: Path, against: str
) -> None:
    """Draw what can be drawn of several; a single one that cannot be is the mistake."""
    from tepo.analysis.figures import draw_figure
    from tepo.common.errors import UserError

    missing: list[UserError] = []
    suffix = "" if against == "steps" else f"-{against}"
    for chosen in names:
        try:
            drawn = draw_figure(study, chosen, scale, units, facts, against)
        except UserError as error:
            if len(names) == 1:
                raise
            missing.append(error)
            continue
        _save(drawn, f"{chosen}{suffix}", out)
    if missing:
        what = "\n".join(
            [f"{len(missing)} of {len(names)} figures were not drawn:", *(f"  {error.what}" for error in missing)]
        )
        raise UserError(what, where=missing[0].where, fix=missing[0].fix, exit_code=1)


def _save(drawn: "Figure", name: str, out: Path) -> None:
    from tepo.reporting.figures.curves import save

    for path in save(drawn, out, f"figure-{name}", "--out DIR"):
        typer.echo(path)


def report(
    studies: Annotated[
        list[str] | None,
        typer.Argument(help=f"Studies on the page, or claims (default: {' '.join(STUDIES)}).", show_default=False),
    ] = None,
    scale: Scale = "laptop",
    seeds: Seeds = None,
    store: Store = Path("runs"),
    data: Data = None,
    override: SetAsRun = None,
    records: Records = False,
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    results: Annotated[Path | None, typer.Option(help="Also write the tables and verdicts as Markdown.")] = None,
    url: Annotated[
        str, typer.Option(help="Where the page will stand: a link to it then shows the finding and a picture.")
    ] = "",
) -> None:
    """Write one HTML page from what the store holds.

    It is self-contained: tables, curves, configurations, tokens. Never trains."""
    from tepo.reporting.progress import say
    from tepo.studies.plan_studies import plan_all
    from tepo_cli.study_outputs import check_outputs, write_outputs

    check_outputs(out, results, url)
    say(f"planning: {' '.join(studies or STUDIES)}")
    planned = plan_all(
        studies or STUDIES, scale, store=store, seeds=parse_seeds(seeds), overrides=row_overrides(override, data)
    )
    write_outputs(*filled(planned, records, store, scale, parse_seeds(seeds)), scale, out, results, url)


def audit(
    all_rows: Annotated[
        bool, typer.Option("--all", help="Show every row's average, not only those that do not follow.")
    ] = False,
) -> None:
    """Recompute the paper's averages, differences and ranks.

    They are recomputed from the paper's own columns."""
    from tepo.reporting.paper import audit as library
    from tepo.reporting.paper.audit_view import render
    from tepo.reporting.progress import Screen
    from tepo_cli.screen import screen_width

    Screen(width=screen_width()).print(render(library.audit(), every_row=all_rows))
