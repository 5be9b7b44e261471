"""The page: one self-contained HTML file with tables, curves, configurations and the token view.

It loads nothing from anywhere.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from tepo.config.differences import settings_apart
from tepo.reporting.page.drawing import drawing
from tepo.reporting.page.forest import forests
from tepo.reporting.page.head import PageHead, finding
from tepo.reporting.page.packed import packed
from tepo.reporting.page.run_data import PageRun, run_data
from tepo.reporting.page.sample_data import RunSamples, pack_samples
from tepo.reporting.page.sweep_map import SweepMap, sentence
from tepo.reporting.page.token_data import summary, token_data
from tepo.reporting.tables.provenance_note import made_by
from tepo.reporting.tables.renderers import csv, html_table, latex, markdown
from tepo.reporting.tables.table import Table

STYLES = (*("page", "contents", "first", "tables", "map"), *("curves", "tokens", "runs", "print"))
SCRIPTS = (*("packed", "contents", "tables", "cells", "copy"), *("curves", "map", "runs", "tokens", "side"))


@dataclass(frozen=True)
class PageFigure:
    """name: unique on the page. svg: as `figures.curves.svg` gives it; empty for curves, which are drawn from `charts`
    (of `chart_data`)."""

    name: str
    caption: str
    svg: str = ""
    charts: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class PageStudy:
    """One table with its figures, and the maps of a sweep."""

    table: Table
    figures: tuple[PageFigure, ...] = ()
    maps: tuple[SweepMap, ...] = ()

    @property
    def finding(self) -> str:
        """The study in a sentence: its verdicts, or where its map lies high and low."""
        return (not self.table.comparisons and sentence(self.maps)) or finding(self.table)


def build_page(
    head: PageHead,
    studies: Sequence[PageStudy],
    runs: Sequence[PageRun],
    samples: Sequence[RunSamples] = (),
    opening: PageFigure | None = None,
) -> str:
    """The page as HTML text. samples: what runs answered on benchmarks, as many of them as fit. opening: the figure of
    the first screen."""
    apart = settings_apart([(run.label, run.seed) for run in runs], [run.config for run in runs])
    runs = [
        replace(run, label=f"{run.label} ({settings})") if settings else run
        for run, settings in zip(runs, apart, strict=True)
    ]
    names = {run.id: f"{run.label}, seed {run.seed}" for run in runs}
    shown = [(names[run.id], dump) for run in runs for dump in run.tokens]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tepo.reporting.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["packed"] = packed
    return environment.get_template("page.html.j2").render(
        head=head,
        # the word in bold at its beginning, and the rest
        claims=[said.removeprefix("**").partition("** ")[::2] for said in head.sentences],
        opening=opening and _figure(opening),
        studies=[_study(study, set(names)) for study in studies],
        texts=packed(
            {
                f"table-{study.table.name}": {
                    "Markdown": markdown.render(study.table),
                    "LaTeX": latex.render(study.table),
                    "CSV": csv.render(study.table),
                }
                for study in studies
            }
        ),
        runs=run_data(runs),
        made_by=made_by([session for run in runs for session in run.sessions]),
        unrecorded=sum(not run.sessions for run in runs),
        dumps=[summary(f"{label}, step {dump.step}", dump) for label, dump in shown],
        tokens=packed(token_data(shown) | {"ids": {run.id: names[run.id] for run in runs if run.tokens}}),
        samples=pack_samples([replace(one, label=names.get(one.id, one.label)) for one in samples]),
        css=Markup("".join(map(_asset, ("vendor/uPlot.min.css", *(f"styles/{name}.css" for name in STYLES))))),
        script=Markup("".join(map(_asset, ("vendor/uPlot.iife.min.js", *(f"scripts/{name}.js" for name in SCRIPTS))))),
        licence=_asset("vendor/uPlot-LICENSE.txt"),
    )


def _study(study: PageStudy, runs: set[str]) -> dict[str, Any]:
    """Content of a study's part of the page. lead: the figure that stands open, where it has neither map nor
    comparisons."""
    shown = forests(study.table)
    figures = [_figure(figure) for figure in study.figures]
    return {
        "name": study.table.name,
        "title": study.table.title,
        "finding": study.finding,
        "wide": html_table.is_wide(study.table),
        "table": Markup(html_table.body(study.table, runs)),
        "forests": shown,
        "marks": {line.mark for forest in shown for line in forest.lines},
        "maps": study.maps,
        "figures": figures,
        "lead": figures[:1] if not (shown or study.maps) else [],
    }


def _figure(figure: PageFigure) -> dict[str, Any]:
    charts = figure.charts
    svg = inline_svg(figure) if charts is None else Markup(drawing(charts, figure.caption))
    data, lifted = ("", False) if charts is None else (packed(charts), bool(charts["lifted"]))
    return {"name": figure.name, "caption": figure.caption, "svg": svg, "data": data, "lifted": lifted}


def inline_svg(figure: PageFigure) -> Markup:
    """The figure's SVG element with ids of its own, so that several can stand in one document, in half of its bytes:
    tenths of a point, without the groups' names, line ends and turns by nothing."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", figure.svg[figure.svg.index("<svg") :], flags=re.S)
    svg = re.sub(r'\b(?:d|x|y)="[^"]*"', lambda found: re.sub(r"(\.\d)\d+", r"\1", found[0]), svg)
    svg = re.sub(r'(?<=<g) id="[^"]*"| transform="rotate\(-0 [^"]*"', "", svg)
    svg = re.sub(r"\n\s*(?=<)", "", svg)
    prefix = re.sub(r"\W", "-", figure.name) + "-"
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}", svg)
    svg = re.sub(r'href="#', f'href="#{prefix}', svg)
    label = Markup.escape(figure.caption)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1))


def _asset(name: str) -> str:
    return (files("tepo.reporting.page") / "assets" / name).read_text(encoding="utf-8")
