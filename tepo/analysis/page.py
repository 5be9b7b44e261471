"""Results of several studies: what the page and the document are made of, and the HTML page."""

import math
import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from tepo.analysis.charts import claims_chart, joint_comparison, own_rows, reward_curves, study_charts
from tepo.analysis.claim_outcomes import ClaimOutcome, judge_claims
from tepo.analysis.claims_table import claims_table
from tepo.analysis.page_head import head_of
from tepo.analysis.tables import baseline_label, study_table
from tepo.common.text import counted
from tepo.config.compose import to_dict
from tepo.formula.row import labels, row_of
from tepo.reporting.charts.style import NamedChart
from tepo.reporting.page import PageContent, PageStudy, build_page
from tepo.reporting.page.equations import methods
from tepo.reporting.page.page_data import RunSamples
from tepo.reporting.page.runs import PageRun
from tepo.reporting.tables.paper_comparisons import paper_comparisons
from tepo.store.facts import Facts
from tepo.store.samples_file import answered
from tepo.store.stored_tokens import read_dump
from tepo.studies.claims import OWN, file_of, load_claims
from tepo.studies.plan import Unit, reported, row_key, unique
from tepo.studies.plan_studies import Planned, claims_apart
from tepo.studies.study import CLAIMS

_CLAIMS = 8  # that stand on the first screen
_DUMPS = 200  # of tokens on the page
_READ = 80_000_000  # characters of responses at most: reading more takes longer than all of the page


def render_all(
    planned: Planned, facts: Facts, report: Callable[[float, str], None] = lambda done, note: None
) -> PageContent:
    """The registered claims of the plan, the table and charts of each study, the papers' comparisons beside ours, and
    every trained run of the plan. Studies with rows that the reader wrote come first. report: called with how many of
    its `parts` are done, and the name of the last."""
    own = own_rows(planned)
    planned = sorted(planned, key=lambda part: not any(row_key(unit) in own for unit in part[1]))
    registered, ordinary = claims_apart(planned)
    distinct = unique(unit for _, units in planned for unit in units)
    trained = [unit for unit in distinct if facts.of(unit.id).trained]
    claims = load_claims(files={file_of(study.batch) for study, _ in registered})
    judged = judge_claims(claims, {study.name: units for study, units in registered}, facts)
    studies, tables = list[PageStudy](), []
    if registered:
        studies.append(PageStudy(claims_table(judged, ())))
    report(1, CLAIMS)
    for number, (study, units) in enumerate(ordinary, start=2):
        tables.append(study_table(study, units, facts))
        studies.append(PageStudy(tables[-1], list(study_charts(study, units, facts, tables[-1]))))
        report(number, study.name)
    papers = paper_comparisons(tables)
    if papers.blocks and len(ordinary) > 1:
        studies.append(PageStudy(papers))
    picture, studies = _opening(judged, studies, own)
    by_own = sorted(registered, key=lambda part: not part[0].batch.startswith(OWN))
    curve = reward_curves([*ordinary, *by_own], facts)
    runs = _page_runs(trained, facts)
    samples = _samples([unit for unit in reported(distinct) if not unit.recorded])
    head, pictures = head_of(planned, facts, own), [chart for chart in (picture, curve) if chart]
    return PageContent(
        head, studies, runs, _compared_first(samples, ordinary, own), pictures, _methods(planned, own), own
    )


def parts(planned: Planned) -> int:
    """Number of parts that `render_all` reports: each study, and the claims."""
    return 1 + len(claims_apart(planned)[1])


def _opening(
    judged: Sequence[ClaimOutcome], studies: Sequence[PageStudy], own: Collection[str]
) -> tuple[NamedChart | None, list[PageStudy]]:
    """The first screen's picture: the claims, or what all studies compare, or their first map; and the studies without
    the charts that it makes needless."""

    def without(kind: str) -> list[PageStudy]:
        return [replace(one, charts=[chart for chart in one.charts if chart.kind != kind]) for one in studies]

    if picture := claims_chart(judged, _CLAIMS):
        every = [] if sum(one.answer is not None for one in judged) <= _CLAIMS else [claims_chart(judged)]
        return picture, [replace(studies[0], charts=list(filter(None, every))), *studies[1:]]
    if joint := joint_comparison([study.table for study in studies], own):
        picture, whole = joint
        return picture, without("differences") if whole else list(studies)
    maps = [chart for study in studies for chart in study.charts if chart.kind == "map"]
    if len(maps) == 1:
        return maps[0], without("map")
    return (maps[0] if maps else None), list(studies)


def _methods(planned: Planned, own: Collection[str]) -> list[dict[str, Any]]:
    """Equations of the methods of all studies: the reader's own, the baselines, and the others."""
    names = {name: label for label, name in reversed(labels().items())}  # rows of claims are called by their claims
    first: dict[str, Unit] = {}
    places: dict[str, int] = {}
    for study, units in planned:
        baseline = baseline_label(study, units)
        for unit in units:
            if not unit.row.objective:
                continue
            label = names.get(unit.row.objective, unit.row.objective) if study.registered else unit.row_label
            place = 0 if row_key(unit) in own else 1 if label == baseline else 2
            places[label] = min(place, places.get(label, place))
            first.setdefault(label, unit)
    rows = [
        (label, unit.row.look, row_of(unit.config.objective))
        for label, unit in sorted(first.items(), key=lambda entry: places[entry[0]])
    ]
    baselines = [label for label, place in places.items() if place == 1]
    return methods(rows, baselines[0] if len(baselines) == 1 else "")


def page(rendered: PageContent, command: str = "") -> str:
    """The self-contained HTML page. command: makes the page, once its runs are there."""
    repeat = [*rendered.head.repeat, *([command] if command else [])]
    return build_page(replace(rendered, head=replace(rendered.head, repeat=repeat)))


def _page_runs(units: Sequence[Unit], facts: Facts) -> list[PageRun]:
    """The trained runs. Of one in the store token dumps are shown, evenly over training, with the last, and the first
    where there is room for two; a record has those before and after its reward fell, of a run that fell."""
    sums = facts.scores.groupby(["run", "benchmark"], observed=True)[["right", "samples"]].sum()
    shares = (sums["right"] / sums["samples"]).groupby("run", observed=True).agg(["mean", "size"])
    # by the number of its benchmarks too: a mean over some of them is of none
    by_run = {(str(run), int(size)): float(mean) for run, mean, size in shares.itertuples()}
    most, runs = max(1, _DUMPS // max(1, len(units))), []
    for unit in units:
        run_facts = facts.of(unit.id)
        words = [str(run_facts.outcome), counted(run_facts.trained, "step")]
        if not math.isnan(share := by_run.get((unit.id, len(unit.config.data.benchmarks)), math.nan)):
            words.append(f"{100 * share:.1f}% right")
        if unit.recorded:
            dumps = [run_facts.excerpt.before.dump, run_facts.excerpt.after.dump] if run_facts.excerpt else []
        else:
            paths = unit.folder.token_dumps()
            last = len(paths) - 1
            places = {last} if most == 1 else {round(last * part / (most - 1)) for part in range(most)}
            dumps = [read_dump(paths[place]) for place in sorted(places)] if paths else []
        config = to_dict(unit.config) if unit.recorded else unit.folder.config()["full"]
        command = shlex.join(["tepo", "train", *unit.overrides])
        method = unit.row.objective or ""
        runs.append(
            PageRun(unit.id, unit.label, method, unit.seed, config, ", ".join(words), dumps, run_facts.made, command)
        )
    return runs


def _samples(units: Sequence[Unit]) -> list[RunSamples]:
    """Stored responses of the units that were measured here (a record holds none), in their order.

    First seeds of all rows are read first. After `_READ` characters, a response counted with 200 more, the other units
    come without their responses."""
    measured = {index: [name for name in unit.benchmarks if unit.folder.has(name)] for index, unit in enumerate(units)}
    samples, read = {}, 0
    for index in sorted((index for index, names in measured.items() if names), key=lambda index: units[index].seed):
        unit = units[index]
        names = measured[index] if read < _READ else []
        problems = {name: answered(unit.folder.evaluation(name)) for name in names}
        read += sum(
            200 + len(response.text)
            for benchmark_problems in problems.values()
            for problem in benchmark_problems
            for response in problem.answers
        )
        label = f"{unit.label}, seed {unit.seed}" if unit.trains else unit.label
        samples[index] = RunSamples(unit.id, label, problems)
    return [samples[index] for index in sorted(samples)]


def _compared_first(samples: Sequence[RunSamples], planned: Planned, own: Collection[str]) -> list[RunSamples]:
    """The samples, at their head those of a baseline and of a row to compare with it, the reader's own if there is one:
    two runs of one seed."""
    for study, units in planned:
        trained = sorted((unit for unit in reported(units) if unit.trains), key=lambda unit: unit.seed)
        beside = [unit for unit in trained if unit.row.label != study.baseline]
        other = next((unit for unit in beside if row_key(unit) in own), beside[0] if beside else None)
        baseline = [unit for unit in trained if unit not in beside and other and unit.seed == other.seed]
        if other and baseline:
            pair = [baseline[0].id, other.id]
            return sorted(samples, key=lambda run: pair.index(run.id) if run.id in pair else len(pair))
    return list(samples)
