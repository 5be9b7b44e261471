"""The page: one self-contained HTML file. Its first screen says what was asked and found, with pictures; tables,
charts, responses, tokens and runs are below. Of many studies tables and further charts are folded. It loads nothing
from anywhere.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup, escape

from tepo.config.differences import settings_apart
from tepo.reporting.charts.style import NamedChart, specification, svg, vega
from tepo.reporting.headline import compared, decisive, headline
from tepo.reporting.page.page_data import RunSamples, pack_samples, packed, token_data
from tepo.reporting.page.runs import PageRun, run_rows
from tepo.reporting.tables import html_table
from tepo.reporting.tables.provenance_note import made_by
from tepo.reporting.tables.render import as_text
from tepo.reporting.tables.table import VERDICT, Table

_ENDS = 12  # rows of the table that stands for curves where no script runs
_FEW = 4  # studies on a page that folds none of their tables and charts
_BLOCKS = 3  # of a table that is not folded
_METHODS = 12  # whose equations are shown
_WIDTH = 760  # pixels of a picture on the first screen


@dataclass(frozen=True)
class PageHead:
    """First screen, beside what was found."""

    title: str  # what the page is about
    made: str = ""  # at which scale, when and by whom
    asked: str = ""  # the question
    ran: str = ""
    cost: str = ""
    caveat: str = ""  # what results like these cannot say
    repeat: Sequence[str] = ()  # commands
    notes: Sequence[str] = ()  # from the file of a study
    sources: Sequence[tuple[str, str]] = ()  # of data: words, and an address or nothing
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
    """All that a page shows. samples: what runs answered on benchmarks, as many of them as fit; the first two are shown
    side by side. pictures: of the first screen. methods: whose equations are shown. own: keys of rows that the reader
    wrote."""

    head: PageHead
    studies: Sequence[PageStudy]
    runs: Sequence[PageRun] = ()
    samples: Sequence[RunSamples] = ()
    pictures: Sequence[NamedChart] = ()
    methods: Sequence[Mapping[str, Any]] = ()
    own: Collection[str] = ()

    @property
    def finding(self) -> str:
        """What all studies found, in a sentence."""
        return headline(*(study.table for study in self.studies), own=self.own) or self.head.title

    @property
    def terms(self) -> dict[str, str]:
        """Words of the first screen that a stranger may not know, in the order in which they come."""
        terms = {}
        if self.runs:
            terms["RL"] = (
                "reinforcement learning: the model answers, its answers are rewarded, and an objective turns the "
                "rewards into an update, one a step"
            )
            terms["Seed"] = "one training with its own random numbers"
        kinds = {picture.kind for picture in self.pictures}
        if "claims" in kinds:
            terms["Claim"] = (
                "a sentence with a number, written down before its runs; refuted means that number, not the sign"
            )
        if "differences" in kinds:
            blocks = [block for study in self.studies for block in decisive(study.table)]
            terms["Points"] = "percentage points of problems answered right, on average over the benchmarks"
            if any(cell.low is not None for block in blocks for _, cell, _ in compared(block)):
                terms["Line"] = "the 95% interval, where other seeds and problems may put the difference"
            if any("(p " in cell.text for block in blocks for cell in block.column(VERDICT).values()):
                terms["p"] = "how often chance alone gives as much, corrected for the number of comparisons"
        if "map" in kinds:
            terms["Cell"] = "percent of the problems answered right after training, over all benchmarks and seeds"
        return terms


def build_page(content: PageContent) -> str:
    """The page as HTML text."""
    studies, pictures = content.studies, content.pictures
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
    charts = [chart for study in studies for chart in study.charts]
    return environment.get_template("page.html.j2").render(
        head=content.head,
        finding=content.finding,
        terms=content.terms,
        # curves are large as SVG, and have a table for those who run no scripts
        pictures=[_chart(one) | ({} if one.kind == "curves" else {"drawn": _drawn(one)}) for one in pictures],
        charted=bool(charts or pictures),
        methods=content.methods[:_METHODS],
        further=max(0, len(content.methods) - _METHODS),
        studies=[_study(study, set(names), few=len(studies) <= _FEW) for study in studies],
        runs=run_rows(runs),
        made_by=made_by([session for run in runs for session in run.sessions]),
        unrecorded=sum(not run.sessions for run in runs),
        count=len(runs),
        tokens=packed(token_data(dumps)) if dumps else "",
        samples=pack_samples([replace(run, label=names.get(run.id, run.label)) for run in content.samples]),
        css=Markup((assets / "page.css").read_text(encoding="utf-8")),
        script=Markup((assets / "page.js").read_text(encoding="utf-8")),
        vega=packed(vega()) if charts or pictures else "",
    )


def _study(study: PageStudy, runs: set[str], *, few: bool) -> dict[str, Any]:
    """Content of a study's part of the page. few: on a page of few studies its table and first curves stand open, but
    not the tables of each setting of a sweep, whose map is the answer."""
    charts = [_chart(chart) for chart in study.charts]
    # all claims stand as sentences in their table, which is always open
    claims = any(row.sentence for block in study.table.blocks for row in block.rows)
    lead = [chart for chart in charts if chart["kind"] in ("differences", "map")][: None if few else 1]
    curves = [chart for chart in charts if chart["kind"] == "curves"][: int(few)]
    return {
        "name": study.table.name,
        "title": study.table.title,
        "finding": study.finding,
        "open": claims or (few and len(study.table.blocks) <= _BLOCKS),
        "table": Markup(html_table.body(study.table, runs)),
        "csv": packed(as_text(study.table, "csv")) if few else "",
        "lead": lead,
        "curves": curves,
        "charts": [chart for chart in charts if chart not in (*lead, *curves)],
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
