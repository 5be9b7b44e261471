"""Outputs of the study commands: tables on the screen, the page, the results as Markdown."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tepo.common.errors import UserError
from tepo.reporting.progress import Screen, bar, console, say
from tepo.store.facts import Facts
from tepo.studies.plan import Unit, row_key
from tepo.studies.plan_studies import Planned
from tepo_cli.screen import screen_width

if TYPE_CHECKING:
    from tepo.reporting.tables.table import Table
    from tepo_cli.cli_options import Asked

BOARD, GAINS = "board", "gains"  # asked for as studies are
_WHERE_AND_HOW = ("--jobs", "-j", "--store", "--out", "--results")


def check_outputs(out: Path, results_path: Path | None) -> None:
    """Raises UserError, before the work, where a folder lies instead of a file."""
    for option, path, name in (("--out", out, "report.html"), ("--results", results_path, "report.md")):
        if path is not None and path.is_dir():
            raise UserError("a folder, not a file", where=f"{option} {path}", fix=f"{option} {path / name}")


def write_outputs(planned: Planned, facts: Facts, out: Path, results_path: Path | None) -> None:
    """The page, and the Markdown document if asked for."""
    from tepo.analysis.page import page, parts, render_all
    from tepo.analysis.results_document import write_results
    from tepo.common.files import write_atomic

    with bar("studies", parts(planned), quiet=not console.is_terminal) as report:
        rendered = render_all(planned, facts, report)
    write_atomic(out, page(rendered, _command()), "--out FILE")
    say(f"page: {out}")
    if results_path is not None:
        write_results(results_path, rendered, planned, facts, _command())
        say(f"results: {results_path}")


def _command() -> str:
    """The command behind a document, without where things lie and how many ran at once."""
    words, skip = ["tepo"], False
    for word in sys.argv[1:]:
        if not skip and word.split("=")[0] not in _WHERE_AND_HOW:
            words.append(shlex.quote(word))
        skip = word in _WHERE_AND_HOW
    return " ".join(words)


def show_tables(planned: Planned, facts: Facts, format: str) -> None:
    """Print the table of each study."""
    from tepo.analysis.tables import study_table

    for study, units in planned:
        show_table(study_table(study, units, facts), units, format)


def show_recorded_tables(planned: Planned) -> None:
    """Print the table of each study of which records hold more than was planned, such as further seeds,
    and two rows at least."""
    from tepo.analysis.tables import study_table
    from tepo.studies.planned_facts import recorded_facts

    planned_ids = {unit.id for _, units in planned for unit in units}
    recorded, facts = recorded_facts(planned)
    for study, units in recorded:
        if any(unit.id not in planned_ids for unit in units) and len({row_key(unit) for unit in units}) > 1:
            table = study_table(study, units, facts)
            show_table(replace(table, title=f"On record, not run here. {table.title}"), (), "terminal")


def show_claims(store: Path, scale: str, format: str, *, records: bool = False) -> None:
    """Print the claims registered at a scale; the family of a verdict is the whole batch, however few were run."""
    from tepo.analysis.claim_outcomes import judge_claims
    from tepo.analysis.claims_table import claims_table
    from tepo.store.find_run import costs
    from tepo.studies.claims import load_claims
    from tepo.studies.plan_studies import plan_all
    from tepo.studies.planned_facts import read_facts
    from tepo.studies.study import CLAIMS

    planned, facts = read_facts(plan_all([CLAIMS], scale, store=store), records=records)
    judged = judge_claims(load_claims(scale), {study.name: units for study, units in planned}, facts)
    table = claims_table(judged, costs(store))
    show_table(table, [unit for _, units in planned for unit in units], format)


def board_of(studies: Sequence[str], store: Path) -> "Table":
    """The board, with the rows of studies of one's own."""
    from tepo.analysis.board import SEEDS, STUDY, board_table, submission
    from tepo.studies.plan_studies import plan_all
    from tepo.studies.planned_facts import read_facts
    from tepo.studies.study import USUAL, study_file

    for name in studies:
        if file := study_file(name):
            submission(file)
    planned = plan_all([STUDY], USUAL, store=store, seeds=SEEDS) + plan_all(studies, USUAL, store=store)
    return board_table(*read_facts(planned, SEEDS, records=True))


def gains(asked: "Asked", records: bool) -> "Table":
    """The papers' gains over their baselines beside ours, with the smallest that could be seen here."""
    from tepo.analysis.study_power import found_in_words, study_power
    from tepo.analysis.tables import study_table
    from tepo.reporting.tables.paper_comparisons import paper_comparisons
    from tepo.studies.study import USUAL, load_study, study_names

    scale, studies = asked.scale or USUAL, map(load_study, study_names())
    printed = [study.name for study in studies if study.reference and study.baseline and scale in study.scales]
    planned, facts = asked.read(printed, records)
    parts = [(study_table(study, units, facts), study_power([(study, units)], facts)) for study, units in planned]
    found = {table.name: found_in_words(power) for table, power in parts}
    return paper_comparisons([table for table, _ in parts], found)


def show_table(table: "Table", units: Sequence[Unit], format: str) -> None:
    """Print a table and say where the runs behind it lie."""
    from tepo.reporting.tables.render import render

    rendered = render(table, format)
    if isinstance(rendered, str):
        print(rendered.rstrip("\n"))
    else:
        Screen(width=screen_width()).print(rendered)
    run_ids = sorted({unit.id for unit in units if unit.folder.path.is_dir()})
    if run_ids:
        say(f"runs in {units[0].store}: {', '.join(run_ids[:8])}{' …' if len(run_ids) > 8 else ''}")
