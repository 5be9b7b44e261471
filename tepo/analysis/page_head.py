"""Words of the first screen of a page: what it is about, what was asked, what ran, when, on which data, and its
limits."""

import json
import math
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from tepo.analysis.tables import fill_command
from tepo.common.text import counted, listed
from tepo.config.own_reward import VERDICT, rewarded
from tepo.policy.model.model_location import resolve
from tepo.problems.benchmarks import Benchmark, load_benchmark
from tepo.problems.training_sets import hub_sets
from tepo.reporting.page import PageHead
from tepo.store.facts import Facts
from tepo.studies.plan import Unit, row_key, scale_of, unique
from tepo.studies.plan_studies import Planned, claims_apart, scales_text
from tepo.studies.study import Study

_NAMED = 4  # models, methods or problem sets that a sentence names
_TITLES = 3  # studies that the first line names
_REPEATED = 3  # studies whose command stands on the first screen
_HUB = "https://huggingface.co/datasets/"


def head_of(planned: Planned, facts: Facts, own: Collection[str] = ()) -> PageHead:
    """Words of the first screen on studies and their runs. own: keys of the reader's own rows."""
    few = claims_apart(planned)[1]
    units = unique(unit for _, part in planned for unit in part)
    trained = [unit for unit in units if unit.trains]
    titles = list(dict.fromkeys("Registered claims" if study.registered else study.title for study, _ in planned))
    scales = scales_text(planned)
    authors = list(dict.fromkeys(study.author for study, _ in planned if study.author))
    return PageHead(
        "; ".join(titles) if len(titles) <= _TITLES else f"{len(titles)} studies",
        scales=scales,
        made=", ".join([f"{scales} scale", *_dates(units, facts), *([f"by {listed(authors)}"] if authors else [])]),
        asked=_asked(planned, own),
        ran=_ran(units, facts),
        cost=_cost(units, facts),
        caveat=_caveat(trained, facts),
        repeat=[fill_command(study, part) for study, part in few] if len(few) <= _REPEATED else [],
        notes=few[0][0].notes if len(few) == 1 else (),  # of several studies each stands below its table alone
        sources=_sources(units),
    )


def _dates(units: Sequence[Unit], facts: Facts) -> list[str]:
    """When the runs were made: "run on 2026-11-28", or from the first day to the last."""
    times = [str(session.get("started") or "") for unit in units for session in facts.of(unit.id).made]
    days = sorted({time[:10] for time in times if time[4:5] == "-"})
    return [f"run on {days[0]}" if len(days) == 1 else f"run from {days[0]} to {days[-1]}"] if days else []


def _asked(planned: Planned, own: Collection[str]) -> str:
    """The question of the studies; empty where they ask several."""
    if claims := len(claims_apart(planned)[0]):
        what = "the claim hold that was" if claims == 1 else f"the {claims} claims hold that were"
        return f"{'Does' if claims == 1 else 'Do'} {what} written down before the runs?"
    questions = list(dict.fromkeys(_question(study, units) for study, units in planned))
    if len(questions) == 1 and (len(planned) == 1 or not planned[0][0].baseline):
        return questions[0]
    baselines = list(dict.fromkeys(_shown(study, units).get(study.baseline or "", "") for study, units in planned))
    if len(baselines) > 1 or any(study.vary_at(scale_of(units)) for study, units in planned):
        return ""
    labels = {
        (row_key(unit) not in own, unit.row_label): None
        for study, units in planned
        for unit in units
        if unit.trains and unit.row.label != study.baseline
    }
    return _beside([label for _, label in sorted(labels, key=lambda label: label[0])], baselines[0])


def _question(study: Study, units: Sequence[Unit]) -> str:
    labels = _shown(study, units)
    rows = [row for row in study.rows if row.label != study.baseline and not row.base]
    if axes := " and ".join(study.vary_at(scale_of(units))):
        count = counted(sum(not row.base for row in study.rows), "method")
        return f"How do {count} compare as {axes} changes?"
    if study.baseline is None or not rows:
        return f"How many problems do {counted(len(study.rows), 'model')} answer right after training?"
    return _beside([labels[row.label] for row in rows], labels[study.baseline])


def _shown(study: Study, units: Sequence[Unit]) -> dict[str, str]:
    """Label of each row as written -> as shown."""
    return {row.label: row.label for row in study.rows} | {unit.row.label: unit.row_label for unit in units}


def _beside(labels: Sequence[str], baseline: str) -> str:
    if not labels:
        return ""
    who = listed(labels) if len(labels) <= _NAMED else f"any of {len(labels)} methods"
    does = "Do" if 1 < len(labels) <= _NAMED else "Does"
    return f"{does} {who} answer more problems right than {baseline} after the same training?"


def _sources(units: Sequence[Unit]) -> list[tuple[str, str]]:
    """Where training problems, rewards and benchmarks come from: words, and an address or nothing."""
    trained, lines = [unit.config.data for unit in units if unit.trains], list[tuple[str, str]]()
    for data in {data.name: data for data in trained}.values():
        sets = hub_sets(data)
        lines += [(f"Training problems: {path}", f"{_HUB}{path}") for path in sets]
        if not sets:
            where = "generated by tepo" if data.kind == "procedural" else Path(data.problems or "").name
            lines.append((f"Training problems {data.name}: {where}", ""))
    # what a machine is told of a reward stands in the notes of each table too
    lines += [(f"Rewarded: {text}", "") for text in dict.fromkeys(rewarded(data) or VERDICT for data in trained)]
    names = dict.fromkeys(name for unit in units for name in unit.config.data.benchmarks)
    generated = list[str]()
    for benchmark in map(load_benchmark, names):
        if benchmark.dataset is None:
            generated.append(benchmark.name.partition(":")[0])
        else:
            lines.append(_benchmark_source(benchmark))
    if generated:
        lines.append((f"Benchmarks generated by tepo: {', '.join(dict.fromkeys(generated))}", ""))
    return list(dict.fromkeys(lines))


def _benchmark_source(benchmark: Benchmark) -> tuple[str, str]:
    assert benchmark.dataset
    on_hub = benchmark.dataset.path.count("/") == 1 and not benchmark.dataset.path.endswith(".jsonl")
    licence = f"; licence: {benchmark.licence}" if benchmark.licence else ""
    words = f"Benchmark {benchmark.title}: {benchmark.provenance or Path(benchmark.dataset.path).name}{licence}"
    return words, f"{_HUB}{benchmark.dataset.path}" if on_hub else ""


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
        "A policy this small shows how optimisation behaves: step sizes, clipping, off-policy updates, variance. It "
        f"says nothing about long chains of thought (responses have {length}), about exploration from a strong base, "
        f"or about where training would end: it stops after {steps} steps."
    )


def _ran(units: Sequence[Unit], facts: Facts) -> str:
    """A sentence that a stranger understands: who was trained on what, how long, how often, and how it was measured."""
    models = list(dict.fromkeys(unit.config.model.name for unit in units))
    named = f" ({', '.join(models)})" if len(models) <= _NAMED else ""
    who = f"{len(models)} models{named}" if len(models) > 1 else _model_words(units[0])
    generated = all(unit.config.data.kind == "procedural" for unit in units)
    data = "procedural arithmetic" if generated else ", ".join(dict.fromkeys(unit.config.data.name for unit in units))
    what = "untrained"
    if seeds := {unit.seed for unit in units if unit.trains}:
        numbers = ranges(seeds)
        under = counted(len(seeds), "seed") if numbers.count(",") > 1 else f"seed{'s' * (len(seeds) > 1)} {numbers}"
        steps = [unit.steps for unit in units if unit.trains]
        length = " to ".join(map(str, dict.fromkeys((min(steps), max(steps)))))
        what = f"trained by RL on {data} for {length} steps with {under}"
    measured_count, runs = sum(facts.of(unit.key).done for unit in units), counted(len(units), "run")
    if measured_count < len(units):
        runs = f"{measured_count:,} of {runs} measured"
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
    of = "".join(f" of {n} problems with {counted(k, 'response')} each" for n, k in protocols if len(protocols) == 1)
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
