"""What a plan of several studies gives: the page, and the results as Markdown."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tepo.common.text import counted, setting_text
from tepo.common.two_processes import two_processes
from tepo.config.compose import to_dict
from tepo.launch.run_units import spent
from tepo.reporting.figures.curves import svg, training_figure
from tepo.reporting.figures.downsample import thinned
from tepo.reporting.figures.step_time_figure import step_time_figure
from tepo.reporting.page import PageFigure, PageRun, PageStudy, build_page
from tepo.reporting.page.charts import chart_data
from tepo.reporting.page.head import PageHead
from tepo.reporting.page.sample_data import RunSamples
from tepo.reporting.page.token_view import read_dump
from tepo.reporting.tables.claims_rows import claims_table
from tepo.reporting.tables.multiple_comparisons import one_family
from tepo.reporting.tables.render import as_text
from tepo.results.claim_outcomes import judge
from tepo.results.claims_table import sentences, table_of
from tepo.results.figures import curves
from tepo.results.kind_figures import own_figures
from tepo.results.page_head import head_of
from tepo.results.page_samples import page_samples
from tepo.results.tables import study_table
from tepo.studies.claims import load_claims
from tepo.studies.plan import Unit, unique
from tepo.studies.plan_studies import Planned
from tepo.studies.study import Study

_POINTS = 200  # of a curve on the page: more are not seen
_DUMPS = 200  # of tokens on the page


@dataclass(frozen=True)
class Rendered:
    """What the page and the results show."""

    head: PageHead
    studies: list[PageStudy]
    runs: list[PageRun]
    samples: list[RunSamples]


def render_all(planned: Planned, scale: str) -> Rendered:
    """From what the store holds, the registered claims of the plan, the table and figures of each study, made by two
    processes, and the papers' comparisons beside ours; and every trained run of the plan, read meanwhile."""
    ordinary = [(study, units) for study, units in planned if not study.registered]
    claimed, said = _claims([units for study, units in planned if study.registered])
    distinct = unique(unit for _, units in planned for unit in units)
    trained = [unit for unit in distinct if unit.row.objective is not None and unit.run.metrics()]
    with two_processes() as pool:
        largest_first = sorted(ordinary, key=lambda entry: -len(entry[1]))
        rendered = {study.name: pool.submit(_render, study, units, scale) for study, units in largest_first}
        runs = [_page_run(unit, max(1, _DUMPS // len(trained))) for unit in trained]
        samples = page_samples([unit for unit in distinct if not unit.tuning])
        parts = [rendered[study.name].result() for study, _ in ordinary]
    tables = one_family([part.table for part in parts])
    studies = [replace(part, table=table) for part, table in zip(parts, tables, strict=True)]
    papers = [table for table in [claims_table(tables)] if table.blocks[0].rows]
    head = head_of(planned, scale, said)
    return Rendered(head, [*claimed, *studies, *map(PageStudy, papers)], runs, samples)


def _claims(units: Sequence[Sequence[Unit]]) -> tuple[list[PageStudy], list[str]]:
    """The table of the registered claims, and their sentences; units: of each, none where the plan has none."""
    if not units:
        return [], []
    claims = load_claims()
    judged = judge(claims, units)
    return [PageStudy(table_of(claims, judged, ()))], sentences(claims, judged)


def _render(study: Study, units: list[Unit], scale: str) -> PageStudy:
    table = study_table(study, scale, units)
    own = [
        PageFigure(f"{one.name}-own", one.caption, svg(one.figure)) for one in own_figures(study, scale, units, table)
    ]
    return PageStudy(table, (*own, *_curves(study, units)))


def page(rendered: Rendered) -> str:
    """The self-contained HTML page of what `render_all` gave."""
    return build_page(rendered.head, rendered.studies, rendered.runs, rendered.samples)


def _curves(study: Study, units: Sequence[Unit]) -> list[PageFigure]:
    """Training curves, one figure a setting; of a study that tunes, those of the rows it reports."""
    settings: dict[str, list[Unit]] = {}
    for unit in (unit for unit in units if not unit.tuning):
        settings.setdefault(setting_text(unit.row.setting.point), []).append(unit)
    figures = []
    for number, (setting, part) in enumerate(settings.items(), start=1):
        if shown := thinned([run for run in curves(part) if run.rows], _POINTS):
            name = f"{study.name}-curves" + (f"-{number}" if setting else "")
            title = study.title + (f": {setting}" if setting else "")
            drawn = svg(training_figure(shown)), chart_data(shown)
            figures.append(PageFigure(name, f"Training curves of {title}", *drawn))
            if times := step_time_figure(shown):
                figures.append(PageFigure(f"{name}-times", f"Where the time of a step went: {title}", svg(times)))
    return figures


def _page_run(unit: Unit, most: int) -> PageRun:
    """most: token dumps that are shown."""
    rows = unit.run.metrics()
    seconds = sum(value for row in rows if isinstance(value := row.get("perf/cpu_s"), int | float))
    facts = {
        "run": unit.id,
        "status": unit.run.outcome(),
        "steps": len(rows),
        "CPU seconds": round(seconds, 1),
    }
    if unit.record:
        config, dumps = to_dict(unit.config), []
    else:
        config = unit.run.config()["full"]
        dumps = [read_dump(path) for path in _spread(unit.run.token_dumps(), most)]
    return PageRun(
        unit.id,
        unit.label,
        unit.row.objective or "",
        unit.seed,
        config,
        facts,
        dumps,
        unit.run.sessions(unit.benchmarks),
        unit.row.look,
        recorded=unit.record is not None,
        command=shlex.join(["tepo", "train", *unit.overrides]),
    )


def _spread(dumps: Sequence[Path], most: int) -> list[Path]:
    """At most so many, evenly over training, with the last."""
    count = min(most, len(dumps))
    return [dumps[-1 - index * len(dumps) // count] for index in range(count)][::-1]


def results(rendered: Rendered, planned: Planned, scale: str, command: str) -> str:
    """The registered claims in words, then all tables with their verdicts, as one Markdown document that names the
    command behind it, and what the runs cost."""
    units = [unit for _, units in planned for unit in units]
    distinct = unique(units)
    return "\n\n".join(
        [
            f"# Results at {scale} scale",
            (
                f"Written by `{command}`. Laptop figures are of a tiny model on procedural arithmetic; "
                "the paper's figures stand in blocks of their own."
            ),
            *(["## What was claimed before it was run"] if rendered.head.sentences else []),
            *(f"- {sentence}" for sentence in rendered.head.sentences),
            *(as_text(study.table, "markdown").strip() for study in rendered.studies),
            (
                f"## Cost\n\n{sum(unit.done() for unit in distinct)} of {counted(len(distinct), 'run')} measured. "
                f"{spent(units)}.\n"
            ),
        ]
    )
