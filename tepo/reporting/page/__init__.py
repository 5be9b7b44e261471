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

from tepo.config.differences import NOT_A_SETTING, flat, settings_apart
from tepo.reporting.colours import Look
from tepo.reporting.page.forest import forests
from tepo.reporting.page.head import PageHead, finding
from tepo.reporting.page.packed import packed, script_json
from tepo.reporting.page.sample_data import RunSamples, pack_samples
from tepo.reporting.page.token_data import summary, token_data
from tepo.reporting.page.token_view import TokenDump
from tepo.reporting.tables.provenance_note import made_by
from tepo.reporting.tables.renderers import csv, html_table, latex, markdown
from tepo.reporting.tables.table import Table

_MOST_COLUMNS = 8  # of settings; more are a text a run
STYLES = (
    *("vendor/uPlot.min.css", "page.css", "first.css", "tables.css"),
    *("curves.css", "tokens.css", "side.css", "print.css"),
)
SCRIPTS = (
    *("vendor/uPlot.iife.min.js", "tables.js", "cells.js", "copy.js"),
    *("curves.js", "packed.js", "tokens.js", "side.js"),
)


@dataclass(frozen=True)
class PageFigure:
    """name: unique on the page. svg: as `figures.curves.svg` gives it. charts: of `chart_data`, for curves that
    are drawn anew where scripts run."""

    name: str
    caption: str
    svg: str
    charts: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class PageStudy:
    """One table with its figures."""

    table: Table
    figures: tuple[PageFigure, ...] = ()


@dataclass(frozen=True)
class PageRun:
    """One run. config: nested mapping. facts: short things to know (steps, status, CPU seconds). tokens: dumps in step
    order. sessions: those that trained and measured it, as `provenance.sessions` gives them. recorded: it is read
    from a record, without responses. command: what trains it."""

    id: str
    label: str
    method: str
    seed: int
    config: Mapping[str, Any]
    facts: Mapping[str, Any]
    tokens: Sequence[TokenDump] = ()
    sessions: Sequence[Mapping[str, Any]] = ()
    look: Look | None = None
    recorded: bool = False
    command: str = ""

    @property
    def swatch(self) -> Markup:
        """A piece of its line."""
        return Markup(html_table.swatch(self.look, self.method))


def build_page(
    head: PageHead, studies: Sequence[PageStudy], runs: Sequence[PageRun], samples: Sequence[RunSamples] = ()
) -> str:
    """The page as HTML text. samples: what runs answered on benchmarks, as many of them as fit."""
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
    ids = {run.id for run in runs}
    return environment.get_template("page.html.j2").render(
        head=head,
        **_first([study.table for study in studies], head),
        studies=[
            (
                study,
                Markup(html_table.render(study.table, ids)),
                [(figure, inline_svg(figure)) for figure in study.figures],
            )
            for study in studies
        ],
        texts=script_json(
            {
                f"table-{study.table.name}": {
                    "Markdown": markdown.render(study.table),
                    "LaTeX": latex.render(study.table),
                    "CSV": csv.render(study.table),
                }
                for study in studies
            }
        ),
        runs=[(run, flat(run.config)) for run in runs],
        differing=_differing(runs),
        rare=_rare(runs),
        made_by=made_by([session for run in runs for session in run.sessions]),
        recorded=sum(run.recorded for run in runs),
        unrecorded=sum(not run.sessions for run in runs),
        dumps=[summary(f"{label}, step {dump.step}", dump) for label, dump in shown],
        tokens=packed(token_data(shown)),
        samples=pack_samples([replace(one, label=names.get(one.id, one.label)) for one in samples]),
        curves=script_json(
            {figure.name: figure.charts for study in studies for figure in study.figures if figure.charts}
        ),
        css=Markup("".join(map(_asset, STYLES))),
        script=Markup("".join(map(_asset, SCRIPTS))),
        licence=_asset("vendor/uPlot-LICENSE.txt"),
    )


def _first(tables: Sequence[Table], head: PageHead) -> dict[str, Any]:
    """Content of the first screen."""
    shown = [forest for table in tables for forest in forests(table)]
    return {
        "findings": [(table, text) for table in tables if (text := finding(table))],
        "forests": shown,
        "marks": {line.mark for forest in shown for line in forest.lines},
        # the word in bold at its beginning, and the rest
        "claims": [sentence.removeprefix("**").partition("** ")[::2] for sentence in head.sentences],
    }


def inline_svg(figure: PageFigure) -> Markup:
    """The figure's SVG element with ids of its own, so that several can stand in one document."""
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", figure.svg[figure.svg.index("<svg") :], flags=re.S)
    svg = re.sub(r'\bd="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)  # hundredths of a point
    prefix = re.sub(r"\W", "-", figure.name) + "-"
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}", svg)
    svg = re.sub(r'href="#', f'href="#{prefix}', svg)
    label = Markup.escape(figure.caption)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1))


def _asset(name: str) -> str:
    return (files("tepo.reporting.page") / "assets" / name).read_text(encoding="utf-8")


def _differing(runs: Sequence[PageRun]) -> list[str]:
    """Settings whose value is not the same in all runs."""
    configs = [flat(run.config) for run in runs]
    keys = dict.fromkeys(key for config in configs for key in config)
    settings = [key for key in keys if not key.startswith(NOT_A_SETTING)]
    return [key for key in settings if len({config.get(key, "") for config in configs}) > 1]


def _rare(runs: Sequence[PageRun]) -> list[str]:
    """Settings of each run that are not those of most runs of its objective; empty where settings have columns."""
    if len(_differing(runs)) <= _MOST_COLUMNS:
        return []
    return settings_apart([run.method for run in runs], [run.config for run in runs])
