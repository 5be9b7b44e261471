"""The page: one self-contained HTML file. Its first screen says what was asked and found, with one picture; tables,
charts, responses, tokens and runs are folded below. It loads nothing from anywhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup, escape

from tepo.config.differences import settings_apart
from tepo.reporting.charts.style import NamedChart, specification, svg, vega
from tepo.reporting.headline import headline
from tepo.reporting.page.page_data import RunSamples, pack_samples, packed, token_data
from tepo.reporting.page.runs import PageRun, run_rows
from tepo.reporting.tables import html_table
from tepo.reporting.tables.provenance_note import made_by
from tepo.reporting.tables.table import Table

_ENDS = 12  # rows of the table that stands for curves where no script runs
_OPEN = ("claims", "differences", "map")  # kinds of charts that a study opens with
_WIDTH = 760  # pixels of the picture on the first screen


@dataclass(frozen=True)
class PageHead:
    """First screen, beside what was found."""

    title: str  # what the page is about
    asked: str = ""  # the question
    ran: str = ""
    cost: str = ""
    terms: Mapping[str, str] = field(default_factory=dict)  # those of the screen, each with its meaning
    caveat: str = ""  # what results like these cannot say
    repeat: Sequence[str] = ()  # commands
    notes: Sequence[str] = ()  # from the file of a study
    scales: str = ""  # of its studies, in words


@dataclass(frozen=True)
class PageStudy:
    """One table with its charts."""

    table: Table
    charts: Sequence[NamedChart] = ()

    @property
    def finding(self) -> str:
        return headline(self.table)


@dataclass(frozen=True)
class PageContent:
    """All that a page shows. samples: what runs answered on benchmarks, as many of them as fit. picture: of the first
    screen; the study that has it does not show it again. methods: whose equations are shown."""

    head: PageHead
    studies: Sequence[PageStudy]
    runs: Sequence[PageRun] = ()
    samples: Sequence[RunSamples] = ()
    picture: NamedChart | None = None
    methods: Sequence[Mapping[str, Any]] = ()


def build_page(content: PageContent) -> str:
    """The page as HTML text."""
    head, studies, picture = content.head, content.studies, content.picture
    apart = settings_apart([(run.label, run.seed) for run in content.runs], [run.config for run in content.runs])
    runs = [
        replace(run, label=f"{run.label} ({settings})") if settings else run
        for run, settings in zip(content.runs, apart, strict=True)
    ]
    names = {run.id: f"{run.label}, seed {run.seed}" for run in runs}
    dumps = [(names[run.id], dump) for run in runs for dump in run.tokens]
    assets = files("tepo.reporting.page")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tepo.reporting.page", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["packed"] = packed
    return environment.get_template("page.html.j2").render(
        head=head,
        finding=next((study.finding for study in studies if study.finding), head.title),
        picture=picture and _chart(picture) | {"drawn": _drawn(picture)},
        methods=content.methods,
        studies=[_study(study, set(names), picture) for study in studies],
        runs=run_rows(runs),
        made_by=made_by([session for run in runs for session in run.sessions]),
        unrecorded=sum(not run.sessions for run in runs),
        count=len(runs),
        tokens=packed(token_data(dumps)) if dumps else "",
        samples=pack_samples([replace(run, label=names.get(run.id, run.label)) for run in content.samples]),
        css=Markup((assets / "page.css").read_text(encoding="utf-8")),
        script=Markup((assets / "page.js").read_text(encoding="utf-8")),
        vega=packed(vega()),
    )


def _study(study: PageStudy, runs: set[str], picture: NamedChart | None) -> dict[str, Any]:
    """Content of a study's part of the page. A chart stands open, unless the page's picture is one of them."""
    study_charts = [chart for chart in study.charts if picture is None or chart.name != picture.name]
    charts = [_chart(chart) for chart in study_charts]
    lead = [chart for chart in charts if chart["kind"] in _OPEN][: int(len(study_charts) == len(study.charts))]
    return {
        "name": study.table.name,
        "title": study.table.title,
        "finding": study.finding,
        "table": Markup(html_table.body(study.table, runs)),
        "lead": lead,
        "charts": [chart for chart in charts if chart not in lead],
    }


def _chart(chart: NamedChart) -> dict[str, Any]:
    ends = chart.ends if len(chart.ends) <= _ENDS else chart.ends[:0]
    return {
        "name": chart.name,
        "kind": chart.kind,
        "caption": chart.caption,
        "data": packed(specification(chart.chart)),
        "ends": [list(ends.columns), *ends.to_numpy().tolist()] if len(ends) else [],
    }


def _drawn(picture: NamedChart) -> Markup:
    """The picture as SVG, which scripts replace by the chart."""
    label = f'<svg role="img" aria-label="{escape(picture.caption)}" '
    return Markup(svg(picture.chart, _WIDTH).replace("<svg ", label, 1))
