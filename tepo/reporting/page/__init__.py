"""The page: one self-contained HTML file with tables, curves, configurations and the token view.

It loads nothing from anywhere.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any
from zlib import crc32

import jinja2
from markupsafe import Markup

from tepo.config.differences import settings_apart
from tepo.reporting.figures.claims_figure import ClaimLine
from tepo.reporting.figures.study_figures import LINES
from tepo.reporting.headline import headline
from tepo.reporting.page.drawing import drawing
from tepo.reporting.page.forest import claim_forests, forests
from tepo.reporting.page.head import PageHead
from tepo.reporting.page.packed import packed
from tepo.reporting.page.run_data import PageRun, run_data
from tepo.reporting.page.sample_data import RunSamples, pack_samples
from tepo.reporting.page.sweep_map import SweepMap
from tepo.reporting.page.token_data import summary, token_data
from tepo.reporting.page.verdict_choices import VerdictChoices
from tepo.reporting.tables.provenance_note import made_by
from tepo.reporting.tables.renderers import csv, html_table, latex, markdown
from tepo.reporting.tables.table import Table

STYLES = (*("page", "contents", "first", "tables", "map"), *("choices", "curves", "tokens", "runs", "print"))
SCRIPTS = (*("packed", "contents", "tables", "cells", "copy"), *("curves", "map", "choices", "runs", "tokens", "side"))

# of a page with at most so many figures of curves: panels that each draws where no script runs
_PANELS = {8: 5, 40: 2, math.inf: 1}


@dataclass(frozen=True)
class PageFigure:
    """name: unique on the page. svg: as `figures.curves.svg` gives it; empty for curves, which are drawn from `charts`
    (of `chart_data`). narrow: the same for a phone; empty: `svg` is scrolled there."""

    name: str
    caption: str
    svg: str = ""
    narrow: str = ""
    charts: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class PageStudy:
    """One table with its figures, the maps of a sweep, its verdicts under other choices, and the claims of a table of
    registered claims."""

    table: Table
    figures: tuple[PageFigure, ...] = ()
    maps: tuple[SweepMap, ...] = ()
    choices: VerdictChoices | None = None
    claims: tuple[ClaimLine, ...] = ()

    @property
    def finding(self) -> str:
        return headline(self.table)


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
    live = sum(figure.charts is not None for study in studies for figure in study.figures)
    panels = next(panels for most, panels in _PANELS.items() if live <= most)
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
        finding=head.finding or next((study.finding for study in studies if study.finding), head.title),
        cite=_cite(head),
        opening=opening and _figure(opening, panels),
        studies=[_study(study, set(names), panels) for study in studies],
        texts=packed(
            {
                f"table-{study.table.name}": {
                    "Markdown": markdown.render(study.table),
                    "LaTeX": "\n\n".join(map(latex.tabular, study.table.blocks)),
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


def _cite(head: PageHead) -> str:
    """Title of the page, version, days of the runs and command: the part that is the same in all its figures."""
    said = [head.title, *(head.facts.get(name, "") for name in ("Version", "Ran")), head.command]
    return ". ".join(filter(None, said))


def _study(study: PageStudy, runs: set[str], panels: int) -> dict[str, Any]:
    """Content of a study's part of the page. lead: the figure that stands open, where it has neither map nor
    comparisons."""
    shown = claim_forests(study.claims) if study.claims else forests(study.table)
    # a map says what its lines would, in cells that open
    figures = [_figure(one, panels) for one in study.figures if not (study.maps and one.caption == LINES)]
    # what stands in the details of the claims is not said again below the table
    blocks = tuple(replace(block, notes=()) for block in study.table.blocks) if study.claims else study.table.blocks
    return {
        "name": study.table.name,
        "title": study.table.title,
        "finding": study.finding,
        "wide": html_table.is_wide(study.table),
        "table": Markup(html_table.body(replace(study.table, blocks=blocks), runs)),
        "forests": shown,
        "waiting": [claim for claim in study.claims if not claim.outcome],
        "maps": study.maps,
        "choices": study.choices,
        "figures": figures,
        "lead": figures[:1] if not (shown or study.maps) else [],
    }


def _figure(figure: PageFigure, panels: int) -> dict[str, Any]:
    charts = figure.charts
    svg = (
        inline_svg(figure.name, figure.caption, figure.svg)
        if charts is None
        else Markup(drawing(charts, figure.caption, panels))
    )
    narrow = inline_svg(f"{figure.name}-narrow", figure.caption, figure.narrow) if figure.narrow else ""
    data, lifted = ("", False) if charts is None else (packed(charts), bool(charts["lifted"]))
    return {
        "name": figure.name,
        "caption": figure.caption,
        "svg": svg,
        "narrow": narrow,
        "data": data,
        "lifted": lifted,
    }


def inline_svg(name: str, caption: str, svg: str) -> Markup:
    """A figure's SVG element with ids of its own, so that several can stand in one document, in half of its bytes:
    tenths of a point, short names, one style for marks of a kind, without the groups' names, line ends, turns by
    nothing and a font at each text."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S)
    svg = re.sub(r'\b(?:d|x|y)="[^"]*"', lambda found: re.sub(r"(\.\d)\d+", r"\1", found[0]), svg)
    svg = re.sub(r'(?<=<g) id="[^"]*"| transform="rotate\(-0 [^"]*"', "", svg)
    svg = re.sub(r"\n\s*(?=<)", "", svg)
    svg = re.sub(r'\bd="[^"]*"', lambda found: re.sub(r" ?\n|(?<=[MLCQ]) ", "", found[0]), svg)
    svg = re.sub(r'\bstyle="[^"]*"', lambda found: re.sub(r"(?<=[:;]) ", "", found[0]), svg)
    svg = re.sub(r" xmlns:xlink=\"[^\"]*\"|\bxlink:(?=href)", "", svg)
    svg = re.sub(r'<use [^>]*( style="[^"]*")/>(<use [^>]*\1/>)+', _of_one_style, svg)
    own = f"f{crc32(name.encode()):x}-"
    ids = {old: f"{own}{number}" for number, old in enumerate(re.findall(r'\bid="([^"]*)"', svg))}
    svg = re.sub(r'(\bid="|url\(#|href="#)([^")]*)', lambda found: found[1] + ids[found[2]], svg)
    family = r"font-family:('[^']*')(?:,[^;\"]*)?;?"
    fonts = {found[1] for found in re.finditer(family, svg)}
    font = f' font-family="{", ".join([*fonts, "sans-serif"])}"' if len(fonts) == 1 else ""
    svg = re.sub(family, "", svg) if font else svg
    label = Markup.escape(caption)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{label}"{font}', 1))


def _of_one_style(found: re.Match[str]) -> str:
    """Marks side by side in a group that has their style."""
    return f"<g{found[1]}>{found[0].replace(found[1], '')}</g>"


def _asset(name: str) -> str:
    return (files("tepo.reporting.page") / "assets" / name).read_text(encoding="utf-8")
