"""The page: one self-contained HTML file with tables, curves, configurations and the token view.

It loads nothing from anywhere.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from tepo.config.differing import flat, settings_apart
from tepo.reporting.colours import Look
from tepo.reporting.made_by import made_by
from tepo.reporting.renderers import html
from tepo.reporting.table import Table
from tepo.reporting.token_view import CLASSES, TokenDump, class_counts, mask_of, token_classes

STYLES = ("vendor/uPlot.min.css", "page.css", "curves.css")
SCRIPTS = ("vendor/uPlot.iife.min.js", "tables.js", "tokens.js", "curves.js")

VIEWS = (
    ("advantage", "Advantage", "diverging"),
    ("ratio", "Ratio", "log"),
    ("log_ratio", "Token log-ratio", "diverging"),
    ("entropy", "Entropy", "sequential"),
    ("entropy_change", "Entropy change", "diverging"),
    ("mask", "KL mask", "mask"),
    ("clipped", "Clipped", "mask"),
    ("kl", "KL", "sequential"),
    ("weight", "Token weight", "sequential"),
)
"""Token views in key order (1 …): value name, title, kind of colour scale.

`mask` is the applied mask, or TEPO's, worked out.
"""


@dataclass(frozen=True)
class PageFigure:
    """name: unique on the page. svg: as `tepo.reporting.curves.svg` gives it. charts: of `chart_data`, for curves that
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
    order. sessions: those that trained and measured it, as `tepo.provenance.sessions` gives them. recorded: it is read
    from a record, without responses."""

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

    @property
    def swatch(self) -> str:
        """Its colour and dash, as CSS."""
        return html.swatch(self.look, self.method)


def build_page(
    title: str, studies: Sequence[PageStudy], runs: Sequence[PageRun], *, subtitle: str = "", responses: int = 32
) -> str:
    """The page as HTML text.

    responses: how many of each token dump are shown (their class counts are over all of it).
    """
    runs = _told_apart(runs)
    shown = [(run, dump) for run in runs for dump in run.tokens]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tepo.reporting", "page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html.j2").render(
        title=title,
        subtitle=subtitle,
        studies=[
            (study, Markup(html.render(study.table)), [(figure, inline_svg(figure)) for figure in study.figures])
            for study in studies
        ],
        runs=[(run, flat(run.config)) for run in runs],
        differing=_differing(runs),
        made_by=made_by([session for run in runs for session in run.sessions]),
        recorded=sum(run.recorded for run in runs),
        unrecorded=sum(not run.sessions for run in runs),
        dumps=[_summary(run, dump) for run, dump in shown],
        data=_script_json(
            {"views": VIEWS, "classes": CLASSES, "dumps": [_dump_data(run, dump, responses) for run, dump in shown]}
        ),
        curves=_script_json(
            {figure.name: figure.charts for study in studies for figure in study.figures if figure.charts}
        ),
        css=Markup("".join(map(_asset, STYLES))),
        script=Markup("".join(map(_asset, SCRIPTS))),
        licence=_asset("vendor/uPlot-LICENSE.txt"),
    )


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
    return (files("tepo.reporting.page") / name).read_text(encoding="utf-8")


def _script_json(value: Any) -> Markup:
    """JSON that can stand inside a script element whatever the texts hold."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _told_apart(runs: Sequence[PageRun]) -> list[PageRun]:
    """The runs, those of one label and seed with the settings that tell them apart."""
    apart = settings_apart([(run.label, run.seed) for run in runs], [run.config for run in runs])
    return [
        replace(run, label=f"{run.label} ({settings})") if settings else run
        for run, settings in zip(runs, apart, strict=True)
    ]


def _differing(runs: Sequence[PageRun]) -> list[str]:
    """Keys whose value is not the same in all runs, the seed left out."""
    configs = [flat(run.config) for run in runs]
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if key != "seed" and len({config.get(key, "") for config in configs}) > 1]


def _summary(run: PageRun, dump: TokenDump) -> dict[str, Any]:
    return {
        "run": run,
        "step": dump.step,
        "applied": _has_mask(dump),
        "counts": class_counts(dump.responses),
        "total": len(dump.responses),
    }


def _has_mask(dump: TokenDump) -> bool:
    """Whether the objective applied a mask; without one the page shows TEPO's, worked out."""
    return any("kl_mask" in response.values for response in dump.responses)


def _dump_data(run: PageRun, dump: TokenDump, limit: int) -> dict[str, Any]:
    responses = []
    for response in dump.responses[:limit]:
        values = {name: [_short(number) for number in numbers] for name, numbers in response.values.items()}
        if (mask := mask_of(response)) is not None:
            values["mask"] = [_short(number) for number in mask]
        classes = [CLASSES.index(name) for name in token_classes(response.tokens)]
        facts = {
            "prompt": response.prompt,
            "answer": response.answer,
            "reward": response.reward,
            "finished": response.finished,
            "group": response.group,
        }
        responses.append({**facts, "tokens": response.tokens, "classes": classes, "values": values})
    return {
        "label": f"{run.label}, seed {run.seed}, step {dump.step}",
        "applied": _has_mask(dump),
        "responses": responses,
    }


def _short(number: float | None) -> float | None:
    """Four significant digits: enough for a colour, a third of the bytes."""
    return None if number is None else float(f"{number:.4g}")
