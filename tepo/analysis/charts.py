"""Charts of studies, from their tables and runs: those that the page, `tepo figure`, documents and notebooks show."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from tepo.analysis.claim_outcomes import ClaimOutcome
from tepo.analysis.tables import baseline_label
from tepo.common.errors import UserError
from tepo.common.text import setting_text
from tepo.evaluation.statistics.samples import AVERAGE
from tepo.reporting.charts import curves, forest, paper_figures, sweeps
from tepo.reporting.charts.style import Chart, Looks, NamedChart
from tepo.reporting.colours import UNTRAINED
from tepo.reporting.headline import compared
from tepo.reporting.tables.cells import format_interval, format_value
from tepo.reporting.tables.sweep_table import LOST, environment_of
from tepo.reporting.tables.table import ENDED, SAME, Cell, Column, Kind, Table, TableBlock
from tepo.store.facts import Facts
from tepo.studies.claims import MEASURES
from tepo.studies.plan import Unit, scale_of
from tepo.studies.study import Study

_AVERAGE, _DELTA = Column(AVERAGE, ""), Column("delta", "", Kind.DELTA)
_POINTS = 72  # of a curve: more are not seen


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
    words = {comparison.row.key: comparison.words for comparison in table.comparisons}
    for number, block in enumerate(blocks, start=1):
        name = _numbered(f"{table.name}-differences", number, len(blocks))
        axis = [f"difference of the average to {block.baseline}, points", *untrained(block)]
        caption = ": ".join(filter(None, (f"Differences to {block.baseline}", block.part)))
        rows = [
            _line(_plain(block.label(row)), cell, verdict, words.get(row.key, "") if not block.drawn else "")
            for row, cell, verdict in compared(block)
        ]
        yield NamedChart(name, "differences", caption, forest.differences(pd.DataFrame(rows), axis))


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


def claims_charts(judged: Sequence[ClaimOutcome]) -> list[NamedChart]:
    """The measured claims at a glance, and each with its interval in the panel of its unit: those that hold first, then
    the refuted ones, the largest differences first, behind them those with runs that ended early (†); none where none
    is measured."""
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
            line["ended"] = bool(outcome.ended)
            line["unit"] = "".join(MEASURES[claim.measure])
            line["seeds"] = [100 * value for value in outcome.answer.question.sample if not outcome.censored]
            rows.append(line | {"regions": outside if region.outside else inside})
    if not rows:
        return []
    order = {"holds": 0, "refuted": 1}
    rows.sort(key=lambda row: (order.get(row["verdict"], 2), row["ended"], -_number(row["delta"])))
    frame = pd.DataFrame(rows)
    differences = frame[frame["delta"].notna()]
    glance = "Claims that were written down before their runs, a mark each; †: some of its runs ended early"
    caption = (
        "Each claim: dot and line are A above B with its interval (90%, or 95% where what it says has two ends); "
        "shaded is what it says, small lines are seeds; †: some of its runs ended early"
    )
    return [
        NamedChart("claims-outcomes", "claims", glance, forest.outcomes(frame)),
        *(
            [NamedChart("claims-differences", "differences", caption, forest.claims(differences))]
            if len(differences)
            else []
        ),
    ]


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
        if not unit.row.base and (point := unit.row.setting.point):
            ending = str(facts.of(unit.id).ending or "")
            failed = bool(ending) and not ending.startswith("saturation")  # all answers right is no failure
            key = environment_of(_model(unit, units), point), unit.row_label, next(iter(point.values()))
            cells.setdefault(key, []).append((unit.seed, unit.id, failed))
    return cells


def _run_charts(study: Study, units: Sequence[Unit], facts: Facts, against: str) -> Iterator[NamedChart]:
    """Training curves and step times of each model and setting."""
    parts: dict[str, list[Unit]] = {}
    tuned = study.tune_at(scale_of(units))
    for unit in (unit for unit in units if not unit.tuning):
        # rows that are tuned have each their own setting, and are drawn together
        parts.setdefault("" if tuned else _place(unit, units), []).append(unit)
    for number, (where, part) in enumerate(parts.items(), start=1):
        steps, end = run_steps(part, facts), f"-{number}" if where else ""
        frame = curves.curve_frame(steps, against=against, points=_POINTS)
        if not frame.empty:
            baseline = baseline_label(study, part) or ""
            chart = curves.training_curves(frame, looks_of(part), against=against, baseline=baseline)
            caption = ": ".join(filter(None, ("Training curves", where)))
            yield NamedChart(f"{study.name}-curves{end}", "curves", caption, chart, curves.ends(frame))


def run_steps(units: Sequence[Unit], facts: Facts) -> pd.DataFrame:
    """Metrics of trained units, once a row and seed, as `curves.curve_frame` takes them. Rows are called by their
    setting too where there are several."""
    labelled_units = zip(_labels(units), units, strict=True)
    trained = {(label, unit.seed): unit for label, unit in labelled_units if not unit.row.base}
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
    missing = sorted({unit.label for unit in chosen if not facts.of(unit.id, tuning=unit.tuning).done})
    if missing:
        raise UserError(
            f"figure {name} needs rows that were not run: {', '.join(missing)}",
            where=f"store {chosen[0].folder.parent}",
            fix=f"tepo ablate figures --scale {scale_of(units)}",
        )
    looks, steps, title = looks_of(chosen), run_steps(chosen, facts), figure.of or figure.name
    panels = paper_figures.panels_of(title, figure.curves, figure.best, steps)
    frame = curves.curve_frame(steps, panels, against)
    if frame.empty:
        fix = "train the figure's runs with this version"
        raise UserError(f"no run holds what {against!r} counts", where=title, fix=fix)
    return curves.training_curves(frame, looks, panels, against)
