"""Results of several studies: what the page and the document are made of, and the HTML page."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from urllib.parse import urljoin

from tepo.analysis.claim_outcomes import judge_claims
from tepo.analysis.claims_table import claim_lines, claims_table
from tepo.analysis.figures import curves, study_figures
from tepo.analysis.tables import study_table
from tepo.common import paths
from tepo.common.text import counted, setting_text
from tepo.config.compose import to_dict
from tepo.problems.benchmarks import load_benchmark
from tepo.reporting.figures import Figure
from tepo.reporting.figures.claims_figure import claims_figure
from tepo.reporting.figures.curves import svg, thinned
from tepo.reporting.figures.opening_figure import columns_figure, opening_figure, opening_table, text_figure
from tepo.reporting.figures.step_time_figure import step_time_figure
from tepo.reporting.headline import headline, paper_headline
from tepo.reporting.page import PageFigure, PageStudy, build_page
from tepo.reporting.page.charts import chart_data
from tepo.reporting.page.head import Link, PageHead
from tepo.reporting.page.run_data import PageRun
from tepo.reporting.page.sample_data import RunSamples
from tepo.reporting.page.sweep_map import CellRuns, sweep_maps
from tepo.reporting.page.verdict_choices import verdict_choices
from tepo.reporting.tables.paper_comparisons import paper_comparisons
from tepo.reporting.tables.sweep_table import environment_of
from tepo.reporting.tables.table import Table
from tepo.store.excerpt import Excerpt
from tepo.store.facts import Facts
from tepo.store.stored_responses import answered
from tepo.store.stored_tokens import read_dump
from tepo.studies.claims import load_claims
from tepo.studies.plan import Unit, unique
from tepo.studies.plan_studies import Planned
from tepo.studies.study import CLAIMS, Study

OWN = "-own"  # at the end of the name of a study's own figure
_KNOWN = {"laptop": "A policy of 0.2M parameters"}  # what a stranger does not know by name
SCOPE = (
    "Results at this scale can speak of the mechanics of optimisation: size of steps, clipping, off-policy updates, "
    "variance of estimators. They cannot speak of long chains of thought (responses have 28 tokens, the longest 200), "
    "of exploration from a strong base (RL first undoes injected noise), of where training ends (36 steps end before "
    "the plateau) or of a base of another recipe."
)
_NAMED = 4  # models that the first sentence names
_POINTS = 200  # of a curve on the page: more are not seen
_DUMPS = 200  # of tokens on the page
_READ = 80_000_000  # characters of responses at most: reading more takes longer than all of the page
_FEW = 3  # commits that are named


@dataclass(frozen=True)
class Rendered:
    """Content of the page and of the Markdown document."""

    head: PageHead
    studies: list[PageStudy]
    runs: list[PageRun]
    samples: list[RunSamples]


def render_all(
    planned: Planned, facts: Facts, scale: str, report: Callable[[float, str], None] = lambda done, note: None
) -> Rendered:
    """The registered claims of the plan, the table and figures of each study, the papers' comparisons beside ours, and
    every trained run of the plan. report: called with how many of its `parts` are done, and the name of the last."""
    ordinary = [(study, units) for study, units in planned if not study.registered]
    registered = [units for study, units in planned if study.registered]
    distinct = unique(unit for _, units in planned for unit in units)
    trained = [unit for unit in distinct if unit.row.objective is not None and facts.of(unit.id).trained]
    claimed = _claims(registered, facts)
    report(1, CLAIMS)
    studies = []
    for done, (study, units) in enumerate(ordinary, start=2):
        studies.append(_render(study, units, facts, scale))
        report(done, study.name)
    runs = [_page_run(unit, facts, max(1, _DUMPS // len(trained))) for unit in trained]
    samples = page_samples([unit for unit in distinct if not unit.tuning and not unit.recorded])
    papers = [table for table in [paper_comparisons([one.table for one in studies])] if table.blocks[0].rows]
    return Rendered(head_of(planned, facts, scale), [*claimed, *studies, *map(PageStudy, papers)], runs, samples)


def parts(planned: Planned) -> int:
    """Number of parts that `render_all` reports: each study, and the claims."""
    return 1 + sum(not study.registered for study, _ in planned)


def _claims(units: Sequence[Sequence[Unit]], facts: Facts) -> list[PageStudy]:
    """The registered claims; units: of each, none where the plan has none."""
    if not units:
        return []
    claims = load_claims()
    judged = judge_claims(claims, units, facts)
    lines = tuple(claim_lines(claims, judged))
    return [PageStudy(claims_table(claims, judged, ()), claims=lines)]


def _render(study: Study, units: list[Unit], facts: Facts, scale: str) -> PageStudy:
    table = study_table(study, scale, units, facts)
    own = [
        PageFigure(f"{one.name}{OWN}", one.caption, svg(one.figure))
        for one in study_figures(study, scale, units, facts, table)
    ]
    parts: dict[str, list[Unit]] = {}
    for unit in (unit for unit in units if not unit.tuning):
        # rows that are tuned have each their own setting, and are drawn together
        parts.setdefault("" if study.tune_at(scale) else _place(unit, units), []).append(unit)
    figures, names = [], {}
    for number, (place, part) in enumerate(parts.items(), start=1):
        # the study is in its heading and the place in the caption, so that rows are called what tells them apart
        if shown := thinned([run for run in curves(part, facts) if run.rows], _POINTS):
            names[place] = f"{study.name}-curves" + (f"-{number}" if place else "")
            charts = chart_data(shown, baseline=study.baseline or "")
            figures.append(PageFigure(names[place], ": ".join(filter(None, ("Training curves", place))), charts=charts))
            if times := step_time_figure(shown):
                caption = ": ".join(filter(None, ("Where the time of a step went", place)))
                figures.append(PageFigure(f"{names[place]}-times", caption, svg(times)))
    return PageStudy(
        table, (*own, *figures), sweep_maps(table, _cell_runs(units, facts, names)), verdict_choices(table)
    )


def _cell_runs(units: Sequence[Unit], facts: Facts, figures: Mapping[str, str]) -> dict[tuple[str, str, str], CellRuns]:
    """Runs behind each cell of a sweep's map. figures: place -> the figure that holds their curves."""
    cells: dict[tuple[str, str, str], list[Unit]] = {}
    for unit in units:
        if unit.row.objective is not None and (point := unit.row.setting.point):
            value = next(iter(point.values()))
            part = environment_of(_model(unit, units), point)
            cells.setdefault((part, unit.row_label, value), []).append(unit)
    return {
        key: CellRuns(
            figures.get(_place(part[0], units), ""),
            part[0].row_label,
            tuple((unit.seed, unit.id, str(facts.of(unit.id).ending or "")) for unit in part),
            all(unit.recorded for unit in part),
            {unit.id: excerpt for unit in part if (excerpt := _excerpt(unit, facts))},
        )
        for key, part in cells.items()
    }


def _place(unit: Unit, units: Sequence[Unit]) -> str:
    """Model, where a study has several, and setting."""
    return ", ".join(filter(None, (_model(unit, units), setting_text(unit.row.setting.point))))


def _model(unit: Unit, units: Sequence[Unit]) -> str:
    return unit.config.model.name if any(one.model != unit.model for one in units) else ""


def page(rendered: Rendered, url: str = "", picture: str = "", command: str = "") -> str:
    """The self-contained HTML page. url: where it will stand. picture: name of the file of `opening_graphic` beside
    it. command: makes the page."""
    table = opening_table([study.table for study in rendered.studies])
    said = _said(rendered, table)
    link = Link(url, urljoin(url, picture), *said) if url else None
    opening = None
    if table is not None and paper_headline(table):
        drawn = svg(columns_figure(table)), svg(columns_figure(table, narrow=True))
        opening = PageFigure("opening", f"{table.title}: {paper_headline(table)}", *drawn)
    head = replace(rendered.head, finding=said[0], link=link, command=command)
    return build_page(head, rendered.studies, rendered.runs, rendered.samples, opening)


def opening_graphic(rendered: Rendered) -> Figure:
    """The finding as a graphic: the picture that a link to the page shows."""
    table = opening_table([study.table for study in rendered.studies])
    finding, ran = _said(rendered, table)
    for study in rendered.studies:
        if any(one.outcome for one in study.claims):
            return claims_figure(study.claims, finding, ran)
    return opening_figure(table, ran) if table is not None else text_figure(finding, ran)


def _said(rendered: Rendered, opening: Table | None) -> tuple[str, str]:
    """Finding of the page, and what was run. It is that of the registered claims; without claims what shows of the
    paper's differences, or what the first study found."""
    claims = [study.finding for study in rendered.studies if any(one.outcome for one in study.claims)]
    others = [paper_headline(opening) or headline(opening)] if opening else [one.finding for one in rendered.studies]
    return next(filter(None, [*claims, *others]), rendered.head.title), rendered.head.ran


def _excerpt(unit: Unit, facts: Facts) -> Excerpt | None:
    """Responses before and after a fall, of a record or of a run in the store."""
    return facts.of(unit.id).excerpt if unit.recorded else unit.in_store.excerpt()


def _page_run(unit: Unit, facts: Facts, most: int) -> PageRun:
    """most: token dumps that are shown."""
    rows, known = facts.metrics(unit.id), facts.of(unit.id)
    seconds = sum(value for row in rows if isinstance(value := row.get("perf/cpu_s"), int | float))
    shown = {"run": unit.id, "status": known.outcome, "steps": len(rows), "CPU seconds": round(seconds, 1)}
    answers = [facts.right(unit.id, name) for name in unit.config.data.benchmarks]
    scores = [sum(one.right) / (len(one.problems) * one.samples) for one in answers if one is not None]
    if scores and len(scores) == len(answers):
        shown["% right"] = round(100 * fmean(scores), 1)
    if unit.recorded:
        config, dumps = to_dict(unit.config), []
    else:
        config = unit.in_store.config()["full"]
        dumps = [read_dump(path) for path in _spread(unit.in_store.token_dumps(), most)]
    return PageRun(
        unit.id,
        unit.label,
        unit.row.objective or "",
        unit.seed,
        config,
        shown,
        dumps,
        known.made,
        unit.row.look,
        recorded=unit.recorded,
        command=shlex.join(["tepo", "train", *unit.overrides]),
    )


def _spread(dumps: Sequence[Path], most: int) -> list[Path]:
    """At most so many, evenly over training, with the last."""
    count = min(most, len(dumps))
    return [dumps[-1 - index * len(dumps) // count] for index in range(count)][::-1]


def head_of(planned: Planned, facts: Facts, scale: str) -> PageHead:
    """Title and notes of the studies, and facts about their runs."""
    studies = [study for study, _ in planned if not study.registered]
    units = unique(unit for _, part in planned for unit in part)
    # of several studies each stands below its table alone
    notes = studies[0].notes if len(studies) == 1 else ()
    trained = [unit for unit in units if unit.row.objective is not None]
    sessions = [session for unit in units for session in facts.of(unit.id).made]
    days = sorted({str(session["started"])[:10] for session in sessions if session.get("started")})
    commits = dict.fromkeys(str(session["commit"])[:7] for session in sessions if session.get("commit"))
    versions = dict.fromkeys(f"tepo {session['tepo']}" for session in sessions if session.get("tepo"))
    known = list(commits) if len(commits) <= _FEW else [f"{len(commits)} commits"]
    seconds = sum(cost.cpu_s for unit in units for cost in facts.of(unit.id).costs)
    shown = {
        "Scale": scale,
        "Model": ", ".join(dict.fromkeys(unit.config.model.name for unit in units)),
        "Data": ", ".join(dict.fromkeys(unit.config.data.name for unit in units)),
        "Runs": f"{sum(facts.of(unit.id, tuning=unit.tuning).done for unit in units)} of {len(units)} measured",
        "Seeds": ranges(unit.seed for unit in trained),
        "Steps": ranges(unit.config.train.steps for unit in trained),
        "Ran": " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "",
        "Version": ", ".join([*versions, *known]),
        "Cost": f"{seconds / 3600:,.2f} CPU hours" if seconds else "",
    }
    return PageHead(
        f"{_title(planned)}, {scale} scale",
        {name: text for name, text in shown.items() if text},
        tuple(notes),
        SCOPE if scale == "laptop" else "",
        _ran(units, facts),
    )


def _ran(units: Sequence[Unit], facts: Facts) -> str:
    """A sentence that a stranger understands: who was trained on what, how long, how often, and how it was measured."""
    if not units:
        return ""
    models = list(dict.fromkeys(unit.config.model.name for unit in units))
    named = f" ({', '.join(models)})" if len(models) <= _NAMED else ""
    who = f"{len(models)} models{named}" if len(models) > 1 else _KNOWN.get(models[0], models[0])
    generated = all(unit.config.data.kind == "procedural" for unit in units)
    data = "procedural arithmetic" if generated else ", ".join(dict.fromkeys(unit.config.data.name for unit in units))
    what = "as it is"
    if seeds := {unit.seed for unit in units if unit.row.objective is not None}:
        known = ranges(seeds)
        under = counted(len(seeds), "seed") if known.count(",") > 1 else f"seed{'s' * (len(seeds) > 1)} {known}"
        steps = sorted({unit.config.train.steps for unit in units if unit.row.objective is not None})
        length = " to ".join(map(str, dict.fromkeys((steps[0], steps[-1]))))
        what = f"trained by RL on {data} for {length} steps with {under}"
    done = sum(facts.of(unit.id, tuning=unit.tuning).done for unit in units)
    runs = counted(len(units), "run") if done == len(units) else f"{done} of {counted(len(units), 'run')} measured"
    return f"{who}, {what}: {runs}, each on {_benchmarks(units)}."


def _benchmarks(units: Sequence[Unit]) -> str:
    """The number that a unit has, least to most, and their protocol where they have one."""
    sizes = sorted({len(unit.config.data.benchmarks) for unit in units})
    names = dict.fromkeys(name for unit in units for name in unit.config.data.benchmarks)
    protocols = {(one.count, one.samples) for one in map(load_benchmark, names)}
    of = (
        "".join(f" of {n} problems with {counted(k, 'response')} each" for n, k in protocols)
        if len(protocols) == 1
        else ""
    )
    fewest = f"{sizes[0]} to " if len(sizes) > 1 else ""
    return f"{fewest}{counted(sizes[-1], 'benchmark')}{of}"


def _title(planned: Planned) -> str:
    """Titles of one or two studies; for more a name for all."""
    titles = list(dict.fromkeys("Registered claims" if study.registered else study.title for study, _ in planned))
    if len(titles) <= 2:
        return "; ".join(titles)
    folders = [paths.shipped(kind) for kind in ("experiments", "ablations")]
    ours = all(
        study.registered or any((folder / f"{study.name}.yaml").is_file() for folder in folders) for study, _ in planned
    )
    return "TEPO and GTPO / GRPO-S" if ours else f"{len(titles)} studies"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in words, three or more in a row as a range: "0, 1", "100 to 107"."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts)


def page_samples(units: Sequence[Unit]) -> list[RunSamples]:
    """Stored responses of the units that were measured here (a record holds none), in their order.

    First seeds of all rows are read first. After `_READ` characters, a response counted with 200 more, the other units
    come without their responses."""
    measured = {
        index: [name for name in unit.benchmarks if unit.in_store.has(name)] for index, unit in enumerate(units)
    }
    samples, read = {}, 0
    for index in sorted((index for index, names in measured.items() if names), key=lambda index: units[index].seed):
        unit = units[index]
        names = measured[index] if read < _READ else []
        problems = {name: answered(unit.in_store.evaluation(name)) for name in names}
        read += sum(200 + len(one.text) for own in problems.values() for problem in own for one in problem.answers)
        label = unit.label if unit.row.objective is None else f"{unit.label}, seed {unit.seed}"
        samples[index] = RunSamples(unit.id, label, problems)
    return [samples[index] for index in sorted(samples)]
