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
from tepo.reporting.page.forest import forests
from tepo.reporting.page.head import PageHead, finding
from tepo.reporting.renderers import csv, html, latex, markdown
from tepo.reporting.table import Table
from tepo.reporting.token_view import CLASSES, TokenDump, class_counts, mask_of, token_classes

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

_MOST_COLUMNS = 8  # of settings; more are a text a run
STYLES = ("page.css", "first.css", "tables.css", "print.css")
SCRIPTS = ("tables.js", "cells.js", "copy.js", "tokens.js")


@dataclass(frozen=True)
class PageFigure:
    """name: unique on the page. svg: as `tepo.reporting.curves.svg` gives it."""

    name: str
    caption: str
    svg: str


@dataclass(frozen=True)
class PageStudy:
    """One table with its figures."""

    table: Table
    figures: tuple[PageFigure, ...] = ()


@dataclass(frozen=True)
class PageRun:
    """One run. config: nested mapping. facts: short things to know (steps, status, CPU seconds). tokens: dumps in step
    order. sessions: those that trained and measured it, as `tepo.provenance.sessions` gives them. recorded: it is read
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
        return Markup(html.swatch(self.look, self.method))


def build_page(head: PageHead, studies: Sequence[PageStudy], runs: Sequence[PageRun], *, responses: int = 32) -> str:
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
    ids = {run.id for run in runs}
    return environment.get_template("page.html.j2").render(
        head=head,
        **_first([study.table for study in studies], head),
        studies=[
            (study, Markup(html.render(study.table, ids)), [(figure, inline_svg(figure)) for figure in study.figures])
            for study in studies
        ],
        texts=_script_json({f"table-{study.table.name}": _texts(study.table) for study in studies}),
        runs=[(run, flat(run.config)) for run in runs],
        differing=_differing(runs),
        rare=_rare(runs),
        made_by=made_by([session for run in runs for session in run.sessions]),
        recorded=sum(run.recorded for run in runs),
        unrecorded=sum(not run.sessions for run in runs),
        dumps=[_summary(run, dump) for run, dump in shown],
        data=_script_json(
            {"views": VIEWS, "classes": CLASSES, "dumps": [_dump_data(run, dump, responses) for run, dump in shown]}
        ),
        css=Markup("".join(map(_asset, STYLES))),
        script=Markup("".join(map(_asset, SCRIPTS))),
    )


def _first(tables: Sequence[Table], head: PageHead) -> dict[str, Any]:
    """What the first screen shows."""
    shown = [forest for table in tables for forest in forests(table)]
    return {
        "findings": [(table, text) for table in tables if (text := finding(table))],
        "forests": shown,
        "marks": {line.mark for forest in shown for line in forest.lines},
        "claims": [_claim(sentence) for sentence in head.sentences],
    }


def _claim(sentence: str) -> tuple[str, str]:
    """The word in bold at its beginning, and the rest."""
    word, _, rest = sentence.removeprefix("**").partition("** ")
    return word, rest


def _texts(table: Table) -> dict[str, str]:
    """What the buttons of a table copy."""
    return {"Markdown": markdown.render(table), "LaTeX": latex.render(table), "CSV": csv.render(table)}


def inline_svg(figure: PageFigure) -> Markup:
    """The figure's SVG element with ids of its own, so that several can stand in one document."""
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", figure.svg[figure.svg.index("<svg") :], flags=re.S)
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


def _rare(runs: Sequence[PageRun]) -> list[str]:
    """Of each run the settings that are not those of most runs of its objective; empty where settings have columns."""
    if len(_differing(runs)) <= _MOST_COLUMNS:
        return []
    return settings_apart([run.method for run in runs], [run.config for run in runs])


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
