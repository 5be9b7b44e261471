"""Results of several studies: what the page and the document are made of, and the HTML page."""

import json
import math
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tepo.analysis.charts import claims_charts, study_charts
from tepo.analysis.claim_outcomes import judge_claims
from tepo.analysis.claims_table import claims_table
from tepo.analysis.tables import fill_command, study_table
from tepo.common.text import counted
from tepo.config.compose import to_dict
from tepo.formula.row import load_row, row_of
from tepo.policy.model.model_location import resolve
from tepo.problems.benchmarks import load_benchmark
from tepo.reporting.charts.style import NamedChart
from tepo.reporting.page import PageContent, PageHead, PageStudy, build_page
from tepo.reporting.page.equations import methods
from tepo.reporting.page.page_data import RunSamples
from tepo.reporting.page.runs import PageRun
from tepo.reporting.tables.paper_comparisons import paper_comparisons
from tepo.store.facts import Facts
from tepo.store.samples_file import answered
from tepo.store.stored_tokens import read_dump
from tepo.studies.claims import Claims, file_of, load_claims
from tepo.studies.plan import Unit, scale_of, unique
from tepo.studies.plan_studies import Planned, scales_text
from tepo.studies.study import CLAIMS

_NAMED = 4  # models that the first sentence names
_SHOWN = 12  # methods whose equations are shown
_REPEATED = 3  # studies whose command stands on the first screen
_DUMPS = 200  # of tokens on the page
_READ = 80_000_000  # characters of responses at most: reading more takes longer than all of the page


def render_all(
    planned: Planned, facts: Facts, report: Callable[[float, str], None] = lambda done, note: None
) -> PageContent:
    """The registered claims of the plan, the table and charts of each study, the papers' comparisons beside ours, and
    every trained run of the plan. report: called with how many of its `parts` are done, and the name of the last."""
    ordinary = [(study, units) for study, units in planned if not study.registered]
    registered = [units for study, units in planned if study.registered]
    batches = {study.batch for study, _ in planned}
    distinct = unique(unit for _, units in planned for unit in units)
    trained = [unit for unit in distinct if not unit.row.base and facts.of(unit.id).trained]
    studies, tables = [], []
    if registered:
        claims = load_claims(files=set(map(file_of, batches))).claims
        judged = judge_claims(Claims(tuple(claim for claim in claims if claim.family in batches)), registered, facts)
        studies.append(PageStudy(claims_table(judged, ()), claims_charts(judged)))
    report(1, CLAIMS)
    for number, (study, units) in enumerate(ordinary, start=2):
        tables.append(study_table(study, units, facts))
        studies.append(PageStudy(tables[-1], list(study_charts(study, units, facts, tables[-1]))))
        report(number, study.name)
    papers = paper_comparisons(tables)
    if papers.blocks and len(ordinary) > 1:
        studies.append(PageStudy(papers))
    picture = opening_chart(studies)
    head = replace(head_of(planned, facts), terms=_terms(picture))
    runs = _page_runs(trained, facts)
    samples = _samples([unit for unit in distinct if not unit.tuning and not unit.recorded])
    return PageContent(head, studies, runs, samples, picture, _methods(planned, studies, picture))


def parts(planned: Planned) -> int:
    """Number of parts that `render_all` reports: each study, and the claims."""
    return 1 + sum(not study.registered for study, _ in planned)


def opening_chart(studies: Sequence[PageStudy]) -> NamedChart | None:
    """The picture of the first screen: the claims, or the first comparison, map or curves of a study."""
    charts = {chart.kind: chart for study in reversed(studies) for chart in reversed(study.charts)}  # the first of each
    return next((charts[kind] for kind in ("claims", "differences", "map", "curves") if kind in charts), None)


def _terms(picture: NamedChart | None) -> dict[str, str]:
    """Words of the first screen that a stranger may not know, in the order in which they come."""
    kind = picture.kind if picture else ""
    terms = {
        "RL": "reinforcement learning: the model answers, its answers are rewarded, and an objective turns the rewards "
        "into an update, one a step",
        "Seed": "one training with its own random numbers",
    }
    if kind == "claims":
        terms["Claim"] = "a sentence with a number, registered before its runs; refuted means that number, not the sign"
    if kind == "differences":
        terms["Points"] = "percentage points of problems answered right, on average over the benchmarks"
        terms["Line"] = "the 95% interval, where other seeds and problems may put the difference"
        terms["p"] = "how often chance alone gives as much, corrected for the number of comparisons"
    if kind == "map":
        terms["Cell"] = "percent of the problems answered right after training, over all benchmarks and seeds"
    return terms


def _methods(planned: Planned, studies: Sequence[PageStudy], picture: NamedChart | None) -> list[dict[str, Any]]:
    """Equations of the methods of the study that the picture is of; of claims those that they name most."""
    if picture is None:
        return []
    name = next(study.table.name for study in studies if picture in study.charts)
    claims = picture.kind == "claims"
    units = [unit for study, part in planned if study.name == name or (claims and study.registered) for unit in part]
    if claims:  # whose rows are called by their claims
        named = dict.fromkeys(unit.row.objective for unit in units if unit.row.objective)
        return methods([(name, None, load_row(name)) for name in named])[:_SHOWN]
    first: dict[str, Unit] = {}
    for unit in units:
        if not unit.row.base:
            first.setdefault(unit.row_label, unit)
    return methods([(label, unit.row.look, row_of(unit.config.objective)) for label, unit in first.items()])[:_SHOWN]


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
            paths = unit.in_store.token_dumps()
            last = len(paths) - 1
            places = {last} if most == 1 else {round(last * part / (most - 1)) for part in range(most)}
            dumps = [read_dump(paths[place]) for place in sorted(places)] if paths else []
        config = to_dict(unit.config) if unit.recorded else unit.in_store.config()["full"]
        command = shlex.join(["tepo", "train", *unit.overrides])
        method = unit.row.objective or ""
        runs.append(
            PageRun(unit.id, unit.label, method, unit.seed, config, ", ".join(words), dumps, run_facts.made, command)
        )
    return runs


def head_of(planned: Planned, facts: Facts) -> PageHead:
    """Words of the first screen on studies and their runs."""
    few = [(study, part) for study, part in planned if not study.registered]
    units = unique(unit for _, part in planned for unit in part)
    trained = [unit for unit in units if not unit.row.base]
    titles = list(dict.fromkeys("Registered claims" if study.registered else study.title for study, _ in planned))
    scales = scales_text(planned)
    return PageHead(
        f"{'; '.join(titles) if len(titles) <= 2 else f'{len(titles)} studies'}, {scales} scale",
        scales=scales,
        asked=_asked(planned),
        ran=_ran(units, facts),
        cost=_cost(units, facts),
        caveat=_caveat(trained, facts),
        repeat=[fill_command(study, part) for study, part in few] if len(few) <= _REPEATED else [],
        notes=few[0][0].notes if len(few) == 1 else (),  # of several studies each stands below its table alone
    )


def _asked(planned: Planned) -> str:
    """The question, in a sentence."""
    studies = [study for study, _ in planned if not study.registered]
    if len(studies) != len(planned):
        return "Asked: do the sentences hold that were written down before the runs?"
    if len(studies) != 1:
        return f"Asked: {len(studies)} questions, a table each."
    study, rows = studies[0], [row for row in studies[0].rows if row.label != studies[0].baseline and not row.base]
    labels = {row.label: row.label for row in study.rows} | {unit.row.label: unit.row_label for unit in planned[0][1]}
    axes = " and ".join(study.vary_at(scale_of(planned[0][1])))
    who = labels[rows[0].label] if len(rows) == 1 else f"any of {len(rows)} methods"
    if axes:
        count = counted(sum(not row.base for row in study.rows), "method")
        return f"Asked: how do {count} fare as {axes} changes?"
    if study.baseline is None or not rows:
        return f"Asked: how many problems do {counted(len(study.rows), 'row')} answer right after training?"
    return f"Asked: after the same training, does {who} answer more problems right than {labels[study.baseline]}?"


def _cost(units: Sequence[Unit], facts: Facts) -> str:
    """CPU time of all runs, as far as it is known."""
    seconds = sum(cost.cpu_s for unit in units for cost in facts.of(unit.id).costs)
    if not seconds:
        return ""
    time = f"{seconds / 60:,.1f} CPU minutes" if seconds < 2 * 3600 else f"{seconds / 3600:,.1f} CPU hours"
    return f"Training and measuring took {time}."


def _caveat(trained: Sequence[Unit], facts: Facts) -> str:
    """Limits of results like these, with the lengths and steps of these runs."""
    curves = facts.curves[facts.curves["run"].isin({unit.id for unit in trained})]
    if curves.empty or not all(unit.one_core for unit in trained):
        return ""
    steps = ranges(unit.config.train.steps for unit in trained)
    longest = max(unit.config.train.max_new_tokens for unit in trained)
    lengths = curves.get("response_length/mean")
    length = f"at most {longest} tokens" + ("" if lengths is None else f", {lengths.mean():.0f} on average")
    return (
        "Results of so small a policy speak of the mechanics of optimisation: size of steps, clipping, off-policy "
        f"updates, variance. They cannot speak of long chains of thought (responses have {length}), of exploration "
        f"from a strong base, or of where training ends: {steps} steps stop before it."
    )


def _ran(units: Sequence[Unit], facts: Facts) -> str:
    """A sentence that a stranger understands: who was trained on what, how long, how often, and how it was measured."""
    models = list(dict.fromkeys(unit.config.model.name for unit in units))
    named = f" ({', '.join(models)})" if len(models) <= _NAMED else ""
    who = f"{len(models)} models{named}" if len(models) > 1 else _model_words(units[0])
    generated = all(unit.config.data.kind == "procedural" for unit in units)
    data = "procedural arithmetic" if generated else ", ".join(dict.fromkeys(unit.config.data.name for unit in units))
    what = "as it is"
    if seeds := {unit.seed for unit in units if not unit.row.base}:
        numbers = ranges(seeds)
        under = counted(len(seeds), "seed") if numbers.count(",") > 1 else f"seed{'s' * (len(seeds) > 1)} {numbers}"
        steps = sorted({unit.config.train.steps for unit in units if not unit.row.base})
        length = " to ".join(map(str, dict.fromkeys((steps[0], steps[-1]))))
        what = f"trained by RL on {data} for {length} steps with {under}"
    measured_count = sum(facts.of(unit.id, tuning=unit.tuning).done for unit in units)
    runs = (
        counted(len(units), "run")
        if measured_count == len(units)
        else f"{measured_count} of {counted(len(units), 'run')} measured"
    )
    return f"{who}, {what}: {runs}, each on {_benchmarks(units)}."


def _model_words(unit: Unit) -> str:
    """The model; of one that is in the package its size, as a stranger does not know its name."""
    path = unit.config.model.path
    if not path.startswith("package:"):
        return unit.config.model.name
    with (Path(resolve(path)) / "model.safetensors").open("rb") as file:  # the format begins with names and shapes
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    count = sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    return f"A language model of {count / 1e6:.1f}M parameters"


def _benchmarks(units: Sequence[Unit]) -> str:
    """The number that a unit has, least to most, and their protocol where they have one."""
    sizes = sorted({len(unit.config.data.benchmarks) for unit in units})
    names = dict.fromkeys(name for unit in units for name in unit.config.data.benchmarks)
    protocols = {(benchmark.count, benchmark.samples) for benchmark in map(load_benchmark, names)}
    of = (
        "".join(f" of {n} problems with {counted(k, 'response')} each" for n, k in protocols)
        if len(protocols) == 1
        else ""
    )
    fewest = f"{sizes[0]} to " if len(sizes) > 1 else ""
    return f"{fewest}{counted(sizes[-1], 'benchmark')}{of}"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in words, three or more in a row as a range: "0, 1", "100 to 107"."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts)


def _samples(units: Sequence[Unit]) -> list[RunSamples]:
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
        read += sum(
            200 + len(response.text)
            for benchmark_problems in problems.values()
            for problem in benchmark_problems
            for response in problem.answers
        )
        label = unit.label if unit.row.base else f"{unit.label}, seed {unit.seed}"
        samples[index] = RunSamples(unit.id, label, problems)
    return [samples[index] for index in sorted(samples)]
