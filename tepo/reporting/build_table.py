"""From samples on disk to a table: one row per method, one column per benchmark, both averages, and the difference to
a baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tepo.errors import unknown_name
from tepo.evaluation.comparison import AVERAGE, COLUMNS, MEAN, check_frame, compare, holm, summarize, verdict
from tepo.evaluation.intervals import FEWEST
from tepo.reporting.colours import UNTRAINED, Look
from tepo.reporting.reference import PAPER, PAPER_BENCHMARKS, PaperRow
from tepo.reporting.table import MISSING, Block, Cell, Column, Kind, Row, Table, ranked


@dataclass(frozen=True)
class RowSpec:
    """A row of a study.

    key: what the samples' `row` column holds. method: the objective, it fixes the colour; UNTRAINED for the base model,
    which has no seeds. section: a heading over neighbouring rows (a panel). model: rows of different models are blocks
    of their own, ranked and compared apart.
    """

    key: str
    label: str
    method: str = ""
    section: str = ""
    model: str = ""
    look: Look | None = None  # the row's own; None: its method's


def build_table(
    samples: pd.DataFrame,
    rows: Sequence[RowSpec],
    benchmarks: Mapping[str, str],
    *,
    name: str,
    title: str,
    baseline: str | None = None,
    reference: Mapping[str, PaperRow] | None = None,
    notes: Sequence[str] = (),
) -> Table:
    """The table of a study.

    samples: one line per graded response, with the columns of `tepo.evaluation.comparison.COLUMNS`.
    rows: in the study's order; a row without samples becomes dashes.
    benchmarks: key -> printed name, in column order; samples of others are left out.
    baseline: label of the row that the other rows of a model are compared with (adds the columns Δ and Verdict).
    reference: row key -> printed row of the paper, shown in a block of its own under the paper's benchmark names.

    Raises UserError for missing columns, an unknown baseline, or seeds of one row evaluated on different problems.
    """
    if baseline is not None and baseline not in {row.label for row in rows}:
        raise unknown_name("baseline row", baseline, (row.label for row in rows), where=f"table {name}")
    frame = _measured_samples(samples, rows, benchmarks)
    scores = pd.DataFrame(columns=["row", "benchmark"]) if frame.empty else summarize(frame)
    if set(frame["benchmark"].unique()) != set(benchmarks):  # an average over other samples is another number
        scores = scores[~scores["benchmark"].isin((AVERAGE, MEAN))]
    deltas = _deltas(frame, rows, benchmarks, baseline) if baseline else None
    models = list(dict.fromkeys(row.model for row in rows))
    blocks = [
        _block(model, [row for row in rows if row.model == model], scores, deltas, benchmarks) for model in models
    ]
    blocks += [
        block
        for model in models
        if (block := reference_block([row for row in rows if row.model == model], reference or {})).rows
    ]
    return Table(name, title, tuple(blocks), (*_notes(frame, benchmarks, rows, baseline), *notes))


def _measured_samples(samples: pd.DataFrame, rows: Sequence[RowSpec], benchmarks: Mapping[str, str]) -> pd.DataFrame:
    if samples.empty:
        return pd.DataFrame(columns=list(COLUMNS))
    check_frame(samples)
    frame = samples[samples["row"].isin([row.key for row in rows]) & samples["benchmark"].isin(list(benchmarks))]
    return frame[list(COLUMNS)]


def _deltas(
    frame: pd.DataFrame, rows: Sequence[RowSpec], benchmarks: Mapping[str, str], baseline: str
) -> dict[str, list[Cell]]:
    """Δ and verdict by row key, Holm-corrected over every comparison of the table."""
    cells = {row.key: [MISSING, Cell(text="baseline")] for row in rows if row.label == baseline}
    tables = []
    for key, model in [(row.key, row.model) for row in rows if row.label == baseline]:
        part = _same_seeds(
            frame[frame["row"].isin([row.key for row in rows if row.model == model])],
            {row.key for row in rows if row.method == UNTRAINED},
        )
        if (
            set(part["benchmark"].unique()) == set(benchmarks)
            and (part["row"] == key).any()
            and part["row"].nunique() > 1
        ):
            tables.append(compare(part, key))
    if not tables:
        return cells
    found = pd.concat(tables, ignore_index=True)
    for line, p in zip(found.itertuples(), holm(found["p"].to_numpy(float)), strict=True):
        delta = MISSING if np.isnan(line.delta) else _cell(line.delta, line.low, line.high)
        cells[str(line.row)] = [delta, Cell(text=verdict(line.delta, p))]
    return cells


def _cell(mean: float, low: float, high: float, samples: int = 0) -> Cell:
    """Shares as percent; without an interval where there is none."""
    return Cell(100 * mean, n=samples) if np.isnan(low) else Cell(100 * mean, 100 * low, 100 * high, samples)


def _same_seeds(frame: pd.DataFrame, untrained: set[str]) -> pd.DataFrame:
    """The frame with the untrained rows, measured once, repeated for every seed of the others: each run started from
    them."""
    base = frame["row"].isin(untrained)
    seeds = frame.loc[~base, "seed"].unique()
    return (
        pd.concat([frame[~base], *(frame[base].assign(seed=seed) for seed in seeds)], ignore_index=True)
        if len(seeds)
        else frame
    )


def _block(
    model: str,
    rows: Sequence[RowSpec],
    scores: pd.DataFrame,
    deltas: Mapping[str, list[Cell]] | None,
    benchmarks: Mapping[str, str],
) -> Block:
    columns = [Column(key, name) for key, name in benchmarks.items()] + [Column(AVERAGE, "Avg."), Column(MEAN, "Mean")]
    found = {
        (line.row, line.benchmark): _cell(line.mean, line.low, line.high, line.samples) for line in scores.itertuples()
    }
    cells = {row.key: [found.get((row.key, column.key), MISSING) for column in columns] for row in rows}
    if deltas is not None:
        columns += [Column("delta", "Δ Avg.", Kind.DELTA), Column("verdict", "Verdict", Kind.TEXT)]
        cells = {key: values + deltas.get(key, [MISSING, MISSING]) for key, values in cells.items()}
    title = f"Measured: {model}" if model else "Measured"
    return ranked(
        Block(
            title,
            tuple(columns),
            tuple(Row(row.key, row.label, tuple(cells[row.key]), row.method, row.section, row.look) for row in rows),
        )
    )


def reference_block(rows: Sequence[RowSpec], reference: Mapping[str, PaperRow]) -> Block:
    """The paper's printed figures for the rows that have one, under the paper's benchmark names and labels."""
    columns = (*(Column(key, name) for key, name in PAPER_BENCHMARKS.items()), Column(AVERAGE, "Avg."))
    printed = [(row, reference[row.key]) for row in rows if row.key in reference]
    lines = tuple(
        Row(
            row.key,
            paper.label,
            (*(Cell(paper.scores[key]) for key in PAPER_BENCHMARKS), Cell(paper.average)),
            row.method,
            row.section,
            row.look,
        )
        for row, paper in printed
    )
    title = f"As printed in the paper ({PAPER}): {', '.join(dict.fromkeys(paper.model for _, paper in printed))}"
    return ranked(Block(title, columns, lines, decimals=2))


def _notes(
    frame: pd.DataFrame, benchmarks: Mapping[str, str], rows: Sequence[RowSpec], baseline: str | None
) -> list[str]:
    if frame.empty:
        return ["nothing measured yet"]
    seeds = sorted(frame["seed"].unique())
    notes = [
        (
            "Avg. = mean over all samples (the paper's micro-average); Mean = plain mean over the benchmarks; "
            "best in bold, second underlined."
        ),
        (
            f"± = half of the 95% interval over training seeds ({', '.join(map(str, seeds))}) and problems "
            "(bootstrap, clustered by problem)."
        ),
    ]
    if len(seeds) == 1:
        notes.append(
            "One seed: intervals and verdicts hold for these trained models "
            "and do not cover what another seed would give."
        )
    if baseline:
        notes.append(
            f"Δ Avg. = points above {baseline} on the same problems and seeds, "
            "with the interval of that comparison alone; verdict at 5%, Holm-corrected over the table."
        )
    if frame.groupby("benchmark")["problem"].nunique().min() < FEWEST:
        notes.append(f"Fewer than {FEWEST} problems give no interval and no verdict.")
    measured = frame.groupby(["row", "benchmark"])["seed"].nunique()
    wanted = {row.key: (1 if row.method == UNTRAINED else len(seeds)) * len(benchmarks) for row in rows}
    if partial := [row.label for row in rows if row.key in measured and measured[row.key].sum() < wanted[row.key]]:
        notes.append(f"Seeds or benchmarks still to be measured: {'; '.join(partial)}.")
    return notes
