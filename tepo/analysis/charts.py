"""Charts of studies, from their tables and runs: those that the page, `tepo figure`, documents and notebooks show."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from tepo.analysis.claim_outcomes import ClaimOutcome
from tepo.analysis.tables import baseline_label
from tepo.common import paths
from tepo.common.errors import UserError
from tepo.common.grouping import grouped
from tepo.common.text import setting_text
from tepo.config.own_reward import rewarded
from tepo.evaluation.statistics.samples import AVERAGE
from tepo.evaluation.statistics.verdict import DeltaVerdict
from tepo.reporting.charts import curves, forest, paper_figures, sweeps
from tepo.reporting.charts.style import Chart, Looks, NamedChart
from tepo.reporting.colours import UNTRAINED, looks
from tepo.reporting.headline import compared, decisive
from tepo.reporting.tables.cells import format_interval, format_value
from tepo.reporting.tables.sweep_table import LOST, environment_of
from tepo.reporting.tables.table import ENDED, SAME, Cell, Column, Kind, Table, TableBlock, verdict_in
from tepo.store.facts import Facts
from tepo.studies.claims import MEASURES, OWN
from tepo.studies.plan import Unit, reported, row_key, scale_of
from tepo.studies.plan_studies import Planned, claims_apart
from tepo.studies.study import Study

_AVERAGE, _DELTA = Column(AVERAGE, ""), Column("delta", "", Kind.DELTA)
_POINTS = 72  # of a curve: more are not seen
_JOINT, _BASES = 12, 2  # rows of a comparison of several studies, and untrained models beside them


def study_charts(
    study: Study, units: Sequence[Unit], facts: Facts, table: Table, against: str = "steps"
) -> Iterator[NamedChart]:
    """Everything of a study that can be drawn and was measured. table: the study's. against: what curves are drawn
    against, one of `curves.AXES`."""
    yield from comparison_charts(table)
    yield from _sweep_charts(table, units, facts)
    yield from _run_charts(study, units, facts, against)


def comparison_charts(table: Table) -> Iterator[NamedChart]:
    """A forest plot for each block whose rows are compared with a baseline."""
    blocks = [block for block in table.blocks if compared(block)]
    for number, block in enumerate(blocks, start=1):
        name = _numbered(f"{table.name}-differences", number, len(blocks))
        axis = [f"difference of the average to {block.baseline}, points", *untrained(block)]
        caption = ": ".join(filter(None, (f"Differences to {block.baseline}", block.part)))
        lines = [_plain(block.label(row)) for row, *_ in compared(block)]
        rows = [line | {"method": label} for label, line in zip(lines, _lines(table, block), strict=True)]
        yield NamedChart(name, "differences", caption, forest.differences(pd.DataFrame(rows), axis))


def joint_comparison(tables: Sequence[Table], own: Collection[str]) -> tuple[NamedChart, bool] | None:
    """One forest plot of what all tables compare, the reader's own rows first (own: their keys), and whether it has all
    of them: of many those that are decided, the largest differences first. None where nothing is compared."""
    parts = [(table, block) for table in tables for block in decisive(table)]
    baselines = list(dict.fromkeys(block.baseline for _, block in parts))
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for table, block in parts:
        for (row, *_), line in zip(compared(block), _lines(table, block), strict=True):
            label = _plain(block.label(row)) + (f" ({block.part})" if block.part else "")
            label += f" against {block.baseline}" if len(baselines) > 1 else ""
            rows.setdefault((label, line["said"]), line | {"method": label, "own": row.key in own, "of": table.title})
    if not rows:
        return None
    times = Counter(label for label, _ in rows)
    lines = [
        row | {"method": f"{label}: {row['of']}" if times[label] > 1 else label} for (label, _), row in rows.items()
    ]
    lines.sort(key=lambda line: not line["own"])
    shown = lines
    if len(lines) > _JOINT:
        decided = (DeltaVerdict.BETTER, DeltaVerdict.WORSE)
        shown = sorted(lines, key=lambda line: (not line["own"], line["verdict"] not in decided, -abs(line["delta"])))[
            :_JOINT
        ]
    beside = baselines[0] if len(baselines) == 1 else "the baseline"
    base = list(dict.fromkeys(text for _, block in parts for text in untrained(block)))
    axis = [f"difference of the average to {beside}, points", *base[:_BASES]]
    caption = f"Differences to {beside}"
    if len(shown) < len(lines):
        yours = "yours, then " if shown[0]["own"] else ""
        caption += f", {_JOINT} of {len(lines)}: {yours}the largest that are decided"
    caption += f"; {ENDED}: some of its runs ended early" if any(ENDED in line["method"] for line in shown) else ""
    frame = pd.DataFrame(shown).drop(columns=["own", "of"])
    return NamedChart("opening-differences", "differences", caption, forest.differences(frame, axis)), shown == lines


def _lines(table: Table, block: TableBlock) -> list[dict[str, Any]]:
    """Differences of a block with their verdicts, and in words with the p that decides."""
    words = {comparison.row.key: comparison.words for comparison in table.comparisons}
    return [
        _line("", cell, verdict, words.get(row.key, "") if not block.drawn else "")
        for row, cell, verdict in compared(block)
    ]


def untrained(block: TableBlock) -> list[str]:
    """A line for each measured row that was not trained, which stands in no chart of differences."""
    averages, deltas = block.column(AVERAGE), block.column("delta")
    return [
        f"{block.label(row)}: {format_value(averages[row.key], _AVERAGE, 1)}%, "
        f"{format_value(deltas[row.key], _DELTA, 1)} points"
        for row in block.rows
        if row.method == UNTRAINED and deltas and deltas[row.key].mean is not None
    ]


def _line(label: str, cell: Cell, verdict: str, words: str = "") -> dict[str, Any]:
    value = f"{format_value(cell, _DELTA, 1)} {format_interval(cell, _DELTA, 1)}".strip()
    p = words.removeprefix(verdict).strip(" ()")
    line = {"method": label, "delta": cell.mean, "verdict": verdict, "said": ", ".join(filter(None, (value, p)))}
    return line | {"low": _number(cell.low), "high": _number(cell.high)}


def claims_chart(judged: Sequence[ClaimOutcome], most: int | None = None) -> NamedChart | None:
    """The measured claims as sentences, each with its interval in the panel of its unit: the reader's own first, then
    those that hold, the largest differences first; behind the others those with runs that ended early (†). most: of
    many so many, own ones, and then of each outcome in turn. None where none is measured."""
    rows = []
    for outcome in judged:
        if outcome.answer:
            claim, region, cell = outcome.claim, outcome.claim.tested, Cell()
            if not outcome.censored:  # of times that some runs did not live to see there is no difference
                low, high = outcome.answer.interval
                cell = Cell(100 * outcome.answer.delta, 100 * low, 100 * high)
            inside = [(100 * region.low, 100 * region.high)]
            outside = [(-math.inf, 100 * region.low), (100 * region.high, math.inf)]
            sentence = claim.sentence.rstrip(".")
            line = _line(f"{sentence} {ENDED}" if outcome.ended else sentence, cell, str(outcome.verdict))
            line["unit"] = "".join(MEASURES[claim.measure])
            measured = f"{line['said']} {claim.unit}" if cell.mean is not None else "censored"
            line["said"] = f"{outcome.verdict}: {measured}"
            line["ended"], line["own"] = bool(outcome.ended), claim.family.startswith(OWN)
            line["seeds"] = [100 * value for value in outcome.answer.question.sample if not outcome.censored]
            rows.append(line | {"regions": outside if region.outside else inside})
    if not rows:
        return None
    order = {"holds": 0, "refuted": 1}
    shown = rows
    if most is not None and len(rows) > most:
        turns = pd.DataFrame(rows).groupby("verdict").cumcount()
        places = sorted(
            range(len(rows)), key=lambda at: (not rows[at]["own"], turns[at], order.get(rows[at]["verdict"], 2))
        )
        shown = [rows[at] for at in sorted(places[:most])]
    shown.sort(
        key=lambda row: (not row["own"], order.get(row["verdict"], 2), row["ended"], -abs(_number(row["delta"])))
    )
    frame = pd.DataFrame(shown)
    which = f"{len(shown)} of {len(rows)} claims, some of each outcome" if len(shown) < len(rows) else "Claims"
    seeds = "; small lines are seeds" if frame["seeds"].map(len).any() else ""
    ended = f"; {ENDED}: some of its runs ended early" if frame["ended"].any() else ""
    caption = (
        f"{which}: dot and line are A above B with its interval (90%, or 95% where what it says has two ends); "
        f"shaded is what it says{seeds}{ended}"
    )
    name = "claims-differences" if most is None else "opening-claims"
    return NamedChart(name, "claims", caption, forest.claims(frame.drop(columns=["own", "ended"])))


def _sweep_charts(table: Table, units: Sequence[Unit], facts: Facts) -> Iterator[NamedChart]:
    """A map for each measured block of a sweep."""
    blocks = [
        block
        for block in table.blocks
        if block.axis and any(c.mean is not None for row in block.rows for c in row.cells)
    ]
    runs = _cell_runs(units, facts)
    lost = {
        row.key: mean
        for _, row, column, cell in table.cells()
        if column.key == LOST and (mean := cell.mean) is not None
    }
    for number, block in enumerate(blocks, start=1):
        frame = _sweep_frame(block, runs, lost)
        name = _numbered(table.name, number, len(blocks))
        caption = f"{block.title}, %; rows that lose least over the grid first"
        caption += "; framed and †: runs ended early" if frame["ended"].any() else ""
        yield NamedChart(f"{name}-map", "map", caption, sweeps.sweep_map(frame, block.axis))


def _sweep_frame(
    block: TableBlock, runs: Mapping[tuple[str, str, str], Sequence[tuple[int, str, bool]]], lost: Mapping[str, float]
) -> pd.DataFrame:
    rows = sorted(block.rows, key=lambda row: (row.key not in lost, lost.get(row.key, 0.0)))
    return pd.DataFrame(
        {
            "method": _plain(row.label),
            "value": column.title,
            "mean": _number(cell.mean),
            "interval": format_interval(cell, Column("", ""), 1),
            "ended": sum(ended for *_, ended in seeds),
            "runs": ", ".join(f"{seed}: {run}" for seed, run, _ in seeds),
            "lost": lost.get(row.key, math.nan),
        }
        for row in rows
        for column, cell in zip(block.columns, row.cells, strict=True)
        for seeds in (runs.get((block.part, row.key, column.title), ()),)
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _cell_runs(units: Sequence[Unit], facts: Facts) -> dict[tuple[str, str, str], list[tuple[int, str, bool]]]:
    """Runs behind each cell (part of the block, row and value): seed, id, and whether it ended early."""
    cells: dict[tuple[str, str, str], list[tuple[int, str, bool]]] = {}
    for unit in units:
        if unit.trains and (point := unit.row.setting.point):
            ending = str(facts.of(unit.id).ending or "")
            failed = bool(ending) and not ending.startswith("saturation")  # all answers right is no failure
            key = environment_of(_model(unit, units), point), unit.row_label, next(iter(point.values()))
            cells.setdefault(key, []).append((unit.seed, unit.id, failed))
    return cells


def _run_charts(study: Study, units: Sequence[Unit], facts: Facts, against: str) -> Iterator[NamedChart]:
    """Training curves and step times of each model and setting."""
    tuned = study.tune_at(scale_of(units))  # then rows have each their own setting, and are drawn together
    parts = grouped(("" if tuned else _place(unit, units), unit) for unit in reported(units))
    for number, (where, part) in enumerate(parts.items(), start=1):
        panels, end = _panels(part), f"-{number}" if where else ""
        frame = curves.curve_frame(run_steps(part, facts), panels, against, points=_POINTS)
        if not frame.empty:
            baseline, own_labels = baseline_label(study, part) or "", own_rows([(study, part)]).values()
            chart = curves.training_curves(frame, looks_of(part), panels, against, [baseline, *own_labels])
            caption = ": ".join(filter(None, ("Training curves", where)))
            yield NamedChart(f"{study.name}-curves{end}", "curves", caption, chart, curves.ends(frame, panels))


def reward_curves(planned: Planned, facts: Facts) -> NamedChart | None:
    """Reward in training, of the rows of the first study that has any, and of the others that train its model at its
    setting, as long as they are few; of a registered claim A and B. None where no run has a reward on record."""
    for first, units in planned:
        place, model = "" if first.tune_at(scale_of(units)) else _place(units[0], units), units[0].model
        part, baseline = list[Unit](), baseline_label(first, units) or ""
        shared = [] if first.registered else [entry for entry in claims_apart(planned)[1] if entry[0] is not first]
        for study, others in [(first, units), *shared]:
            beside = [unit for unit in reported(others) if unit.model == model]
            beside = [unit for unit in beside if study.tune_at(scale_of(others)) or _place(unit, others) == place]
            if study is first or len({unit.label for unit in (*part, *beside)}) <= _JOINT:
                part += beside
        panels = _panels(part)[:1]
        frame = curves.curve_frame(run_steps(part, facts), panels, points=_POINTS)
        if not frame.empty and frame["reward"].notna().any():
            lifted, part_looks = [*own_rows(planned).values(), baseline], looks_of(part)
            if first.registered:  # A and B are called by the claim, and may have one method
                frame["method"] = frame["method"].str.removeprefix(f"{first.name}: ")
                methods = {label.removeprefix(f"{first.name}: "): method for label, (method, _) in part_looks.items()}
                part_looks = {label: (methods[label], own_look) for label, own_look in looks(methods).items()}
            chart = curves.training_curves(frame, part_looks, panels, lifted=lifted, columns=1)
            several = bool((frame.groupby("method")["run"].nunique() > 1).any())
            where = first.title if first.registered else place
            seeds = ", the mean of the seeds and each by itself" if several else ""
            caption = ": ".join(filter(None, (f"Reward in training{seeds}", where)))
            return NamedChart("opening-curves", "curves", caption, chart, curves.ends(frame, panels))
    return None


def _panels(units: Sequence[Unit]) -> Sequence[curves.Panel]:
    """Panels of training curves; a reward other than the grader's verdict is no share of right responses."""
    reward, *others = curves.TRAINING_PANELS
    by_grader = not any(rewarded(unit.config.data) for unit in units)
    return [reward if by_grader else replace(reward, unit="mean, %"), *others]


def own_rows(planned: Planned) -> dict[str, str]:
    """Keys and labels of the rows that the reader wrote: those whose method is a file of his, or one that his study
    changes by `objective.…`."""
    objectives = {unit.row.objective for _, units in planned for unit in units if unit.row.objective}
    written = {name for name in objectives if not paths.is_shipped(name, "objective")}
    rows = {}
    for study, units in claims_apart(planned)[1]:
        is_own = not paths.is_shipped(study.name, *paths.STUDIES)
        for unit in units:
            words = unit.row.words(scale_of(units), unit.model) if is_own else ()
            if unit.row.objective in written or any(word.startswith("objective.") for word in words):
                rows[row_key(unit)] = unit.row_label
    return rows


def run_steps(units: Sequence[Unit], facts: Facts) -> pd.DataFrame:
    """Metrics of trained units, once a row and seed, as `curves.curve_frame` takes them. Rows are called by their
    setting too where there are several."""
    labelled_units = zip(_labels(units), units, strict=True)
    trained = {(label, unit.seed): unit for label, unit in labelled_units if unit.trains}
    runs = pd.DataFrame(
        [(label, seed, unit.id, bool(facts.of(unit.id).ending)) for (label, seed), unit in trained.items()],
        columns=["method", "seed", "run", "ended"],
    )
    steps = facts.curves[facts.curves["run"].isin(runs["run"])].rename(columns={"step": curves.STEP})
    return runs.merge(steps.astype({"run": runs["run"].dtype}), on="run")


def looks_of(units: Sequence[Unit]) -> Looks:
    """Method and look of each row, by the label that it has in its curves."""
    return {
        label: (unit.row.objective or UNTRAINED, unit.row.look)
        for label, unit in zip(_labels(units), units, strict=True)
    }


def _labels(units: Sequence[Unit]) -> list[str]:
    several = len({setting_text(unit.row.setting.point) for unit in units}) > 1
    return [unit.label if several else unit.row_label for unit in units]


def _place(unit: Unit, units: Sequence[Unit]) -> str:
    """Model, where a study has several, and setting."""
    return ", ".join(filter(None, (_model(unit, units), setting_text(unit.row.setting.point))))


def _model(unit: Unit, units: Sequence[Unit]) -> str:
    return unit.config.model.name if any(other_unit.model != unit.model for other_unit in units) else ""


def _plain(label: str) -> str:
    """A row is called the same in every chart."""
    return label.removesuffix(f" {SAME}")


def _numbered(name: str, number: int, of: int) -> str:
    return f"{name}-{number}" if of > 1 else name


def paper_chart(study: Study, name: str, units: Sequence[Unit], facts: Facts, against: str = "steps") -> Chart:
    """One of the papers' figures, of `experiments/figures.yaml`. against: one of `curves.AXES`. Raises UserError naming
    the rows that were not run, and where the runs hold none of its metrics."""
    figure = next(figure for figure in study.figures if figure.name == name)
    chosen = [unit for unit in units if unit.row.label in figure.rows]
    missing = sorted({unit.label for unit in chosen if not facts.of(unit.key).done})
    if missing:
        raise UserError(
            f"figure {name} needs rows that were not run: {', '.join(missing)}",
            where=f"store {chosen[0].store}",
            fix=f"tepo ablate figures --scale {scale_of(units)}",
        )
    looks, steps, title = looks_of(chosen), run_steps(chosen, facts), figure.of or figure.name
    panels = paper_figures.panels_of(title, figure.curves, figure.best, steps)
    frame = curves.curve_frame(steps, panels, against)
    if frame.empty:
        fix = "train the figure's runs with this version"
        raise UserError(f"no run holds what {against!r} counts", where=title, fix=fix)
    return curves.training_curves(frame, looks, panels, against)


def gains_chart(table: Table) -> Chart:
    """What was measured of the papers' gains, with a tick where the printed one is."""
    rows = []
    for block in table.blocks:
        for row in block.rows:
            paper, here, words = row.cells[:3]
            if here.mean is None or paper.mean is None:
                continue
            numbers = f"{format_value(here, block.columns[1], 1)} {format_interval(here, block.columns[1], 1)}".strip()
            said = f"here {numbers}, printed {format_value(paper, block.columns[0], 1)}"
            name = f"{row.label} ({block.title.partition(':')[0]})"
            rows.append(
                {"method": name, "delta": here.mean, "low": here.low, "high": here.high, "said": said}
                | {"verdict": verdict_in(words.text.rpartition(": ")[2]) or "not decided", "seeds": [paper.mean]}
            )
    frame = pd.DataFrame(rows).drop_duplicates("method")
    return forest.differences(frame, ["points above the baseline of its table; tick: as printed"])


def board_chart(table: Table) -> Chart:
    """The board: averages with intervals, coloured by rank."""
    (block,) = table.blocks
    averages = block.column(AVERAGE)
    cells = [(row.label, row.cells[0].text, averages[row.key]) for row in block.rows]
    frame = pd.DataFrame([(label, rank, c.mean, c.low, c.high) for label, rank, c in cells])
    return forest.ranks(frame.set_axis(["method", "rank", "average", "low", "high"], axis=1), "percent right")
