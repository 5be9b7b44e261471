"""Table of a study from samples on disk: one row per method, one column per benchmark, both averages, and the
difference to a baseline."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median

import pandas as pd

from tepo.common.errors import unknown_name
from tepo.common.grouping import grouped
from tepo.common.text import counted, with_setting
from tepo.evaluation.statistics.answer import Answer, Question, answers
from tepo.evaluation.statistics.intervals import FEWEST
from tepo.evaluation.statistics.samples import AVERAGE, COLUMNS, MEAN, check_frame, pair_rows, pairs_of, summarize
from tepo.evaluation.statistics.verdict import FEWEST_SEEDS, LEVEL
from tepo.reporting.colours import UNTRAINED, Look
from tepo.reporting.printed import PaperRow
from tepo.reporting.tables.cells import format_interval, format_value
from tepo.reporting.tables.table import (
    BASELINE,
    ENDED,
    FEW_SEEDS,
    IDENTICAL,
    MISSING,
    SAME,
    VERDICT,
    Cell,
    Column,
    Kind,
    RowComparison,
    Table,
    TableBlock,
    TableRow,
    percent_cell,
    ranked,
)


@dataclass(frozen=True)
class RowSpec:
    """A row of a study."""

    key: str  # what the samples' `row` column holds
    label: str
    method: str = ""  # the objective, which fixes the colour; UNTRAINED for the base model, which has no seeds
    model: str = ""  # rows of different models are blocks of their own, ranked and compared apart
    look: Look | None = None  # the row's own; None: its method's
    setting: Mapping[str, str] = field(default_factory=dict)  # in a sweep, each axis and the row's value: as models
    benchmarks: Sequence[str] = ()  # that it is measured on, the same in all rows of a block; empty: all of the table
    endings: tuple[str, ...] = ()  # of its runs that ended before their last step, with the seed
    measured: tuple[str, ...] = ()  # ids of its runs and benchmarks
    same_as: str = ""  # label of the row of its model and setting whose runs its own are, until rounding parts them

    @property
    def shown(self) -> str:
        """The label and the setting."""
        return with_setting(self.label, self.setting)


@dataclass(frozen=True)
class TableSpec:
    """Content of a table."""

    rows: Sequence[RowSpec]  # in the study's order; a row without samples becomes dashes
    benchmarks: Mapping[str, str]  # key -> printed name, in column order; samples of others are left out
    name: str
    title: str
    baseline: str | None = None  # label of the row that the others of a model and setting are compared with
    family: int | None = None  # comparisons that verdicts are corrected over, None for those of these rows
    # row key -> printed row of the paper, shown in a block of its own under the paper's benchmark names
    reference: Mapping[str, PaperRow] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class _TablePart:
    """The rows of a model and setting, which are ranked and compared with each other."""

    title: str
    rows: Sequence[RowSpec]
    benchmarks: Mapping[str, str]
    baseline: RowSpec | None
    samples: pd.DataFrame

    @property
    def complete(self) -> bool:
        """True where some row is measured on each benchmark: an average over other samples is another number."""
        return set(self.samples["benchmark"].unique()) == set(self.benchmarks)

    @cached_property
    def by_seed(self) -> pd.DataFrame:
        """The samples with those of untrained rows, measured once, for every seed of the others: each run started from
        them."""
        base = self.samples["row"].isin({row.key for row in self.rows if row.method == UNTRAINED})
        trained = self.samples[~base]
        every = [self.samples[base].assign(seed=seed) for seed in trained["seed"].unique()]
        return pd.concat([trained, *every], ignore_index=True) if every else self.samples


def build_table(samples: pd.DataFrame, spec: TableSpec) -> Table:
    """The table of a study from its samples: one line per graded response, with the columns of
    `tepo.evaluation.statistics.samples.COLUMNS`.

    Raises UserError for missing columns, an unknown baseline, or seeds of one row evaluated on different problems.
    """
    if spec.baseline is not None and spec.baseline not in {row.label for row in spec.rows}:
        raise unknown_name("baseline row", spec.baseline, (row.label for row in spec.rows), where=f"table {spec.name}")
    frame = pd.DataFrame(columns=list(COLUMNS))
    if not samples.empty:
        check_frame(samples)
        mask = samples["row"].isin([row.key for row in spec.rows]) & samples["benchmark"].isin(list(spec.benchmarks))
        frame = samples[mask][list(COLUMNS)]
    parts = _parts(spec, frame)
    ranked_blocks = [_block(part) for part in parts]
    blocks = _without_equal_mean([block for block, _ in ranked_blocks])
    compared = [part for part in parts if part.baseline]
    family = sum(len(part.rows) - 1 for part in compared) if spec.family is None else spec.family
    questions: list[Question] = []
    for part in compared:
        rows = set(part.samples["row"])
        if part.baseline and part.baseline.key in rows and len(rows) > 1 and part.complete:
            questions += [pair.question() for pair in pair_rows(part.by_seed, part.baseline.key)]
    measured = {answer.question.a: answer for answer in answers(questions, family)}
    compared_blocks = [_compared(block, part, spec, measured) for block, part in zip(blocks, parts, strict=True)]
    printed = [_printed_block(part.rows, spec.reference) for part in parts]
    reaches = [reach for _, reach in ranked_blocks if reach]
    return Table(
        spec.name,
        spec.title,
        (*(block for block, _ in compared_blocks), *filter(None, printed)),
        (*_notes(frame, spec, parts, blocks, reaches, family), *spec.notes),
        tuple(comparison for _, comparisons in compared_blocks for comparison in comparisons),
    )


def _parts(spec: TableSpec, frame: pd.DataFrame) -> list[_TablePart]:
    """The rows of each model and setting, with their samples."""
    parts = []
    for title, rows in grouped((with_setting(row.model, row.setting), row) for row in spec.rows).items():
        keys = rows[0].benchmarks or spec.benchmarks
        benchmarks = {key: name for key, name in spec.benchmarks.items() if key in keys}
        baseline = next((row for row in rows if row.label == spec.baseline), None)
        part_samples = frame[frame["row"].isin([row.key for row in rows])]
        parts.append(_TablePart(title, rows, benchmarks, baseline, part_samples))
    return parts


def _compared(
    block: TableBlock, part: _TablePart, spec: TableSpec, measured: Mapping[str, Answer]
) -> tuple[TableBlock, list[RowComparison]]:
    """The block of a part with the columns Δ and Verdict, if the table has a baseline, and what they show. Rows of
    which a run ended before its last step are marked, and those that are another one."""
    baseline = next((row for row in block.rows if part.baseline and row.key == part.baseline.key), None)
    same = {row.key for row in part.rows if row.same_as} | {key for group in equal_rows(block) for key in group}
    rows, comparisons = [], []
    for row, row_spec in zip(block.rows, part.rows, strict=True):
        text, cell = BASELINE if row is baseline else "", MISSING
        if baseline is not None and row is not baseline:
            printed = [spec.reference[side.key].average for side in (row, baseline) if side.key in spec.reference]
            paper = printed[0] - printed[1] if len(printed) == 2 else None
            comparisons.append(RowComparison(row, baseline, paper, measured.get(row.key), row_spec.same_as))
            text, cell = comparisons[-1].words, comparisons[-1].cell
        added = (cell, Cell(text=IDENTICAL if row_spec.same_as and text else text)) if spec.baseline else ()
        label = " ".join([row.label, *[ENDED] * bool(row_spec.endings), *[SAME] * (row.key in same)])
        rows.append(replace(row, label=label, cells=(*row.cells, *added)))
    columns = (Column("delta", "Δ Avg.", Kind.DELTA), Column(VERDICT, "Verdict", Kind.TEXT)) if spec.baseline else ()
    compared_block = replace(block, columns=(*block.columns, *columns), rows=tuple(rows), baseline=spec.baseline or "")
    return compared_block, comparisons


def equal_rows(block: TableBlock, known: Collection[str] = ()) -> list[list[str]]:
    """Keys of the rows that agree in every score of a block, two or more together. known: rows that are left out."""
    scores = block.with_columns(place for place, column in enumerate(block.columns) if column.kind is Kind.SCORE)
    rows = (row for row in scores.rows if row.key not in known and all(cell.mean is not None for cell in row.cells))
    return [keys for keys in grouped((row.cells, row.key) for row in rows).values() if len(keys) > 1]


def _block(part: _TablePart) -> tuple[TableBlock, float | None]:
    """The block of a part, and the points of its average from which on rows are told apart; None where none is."""
    scores = summarize(part.samples) if len(part.samples) else pd.DataFrame(columns=["row", "benchmark"])
    if not part.complete:
        scores = scores[~scores["benchmark"].isin((AVERAGE, MEAN))]
    columns = [Column(key, name) for key, name in (*part.benchmarks.items(), (AVERAGE, "Avg."), (MEAN, "Mean"))]
    measured = {
        (line.row, line.benchmark): percent_cell(line.mean, line.low, line.high, line.samples)
        for line in scores.itertuples()
    }
    seeds = {str(row): seeds.unique().tolist() for row, seeds in part.samples.groupby("row")["seed"]}
    rows = tuple(
        TableRow(
            row.key,
            row.shown,
            tuple(measured.get((row.key, column.key), MISSING) for column in columns),
            row.method,
            row.look,
            row.measured,
            tuple(map(int, seeds.get(row.key, ()))),
        )
        for row in part.rows
    )
    title = f"Measured: {part.title}" if part.title else "Measured"
    beside = _beside_best(part, scores)
    # told apart: by a p below 5%, by itself; never under too few seeds
    alike = {
        column: {
            question.a
            for question in questions
            if len(question.sample) < FEWEST_SEEDS or question.estimate.p >= 1 - LEVEL
        }
        for column, questions in beside.items()
    }
    halves = [question.estimate.half for question in beside.get(AVERAGE, ()) if len(question.sample) >= FEWEST_SEEDS]
    block = ranked(TableBlock(title, tuple(columns), rows, part=part.title), alike)
    return block, 100 * median(halves) if halves else None


def _beside_best(part: _TablePart, scores: pd.DataFrame) -> dict[str, list[Question]]:
    """By column its rows beside the best one, on the same seeds and problems. Left out: columns in which no row can be
    told apart, as they have one row, no intervals, or too few seeds."""
    best = grouped(
        (str(lines.loc[lines["mean"].idxmax(), "row"]), str(column))
        for column, lines in scores.groupby("benchmark", sort=False)
        if len(lines) > 1 and lines["low"].notna().all()
    )
    pairs = pairs_of(part.by_seed, best) if best else ()
    return {
        column: questions
        for column, questions in grouped((pair.benchmark, pair.question()) for pair in pairs).items()
        if any(len(question.sample) >= FEWEST_SEEDS for question in questions)
    }


def _without_equal_mean(blocks: list[TableBlock]) -> list[TableBlock]:
    """The blocks without the column Mean where in every row it is what Avg. is, as printed."""
    column = Column(MEAN, "Mean")
    pairs = [
        [(format_value(cell, column, block.decimals), format_interval(cell, column, block.decimals)) for cell in cells]
        for block in blocks
        for cells in zip(block.column(AVERAGE).values(), block.column(MEAN).values(), strict=True)
        if cells[0].mean is not None
    ]
    if not pairs or any(average != mean for average, mean in pairs):
        return blocks
    return [
        block.with_columns(place for place, column in enumerate(block.columns) if column.key != MEAN)
        for block in blocks
    ]


def _printed_block(rows: Sequence[RowSpec], reference: Mapping[str, PaperRow]) -> TableBlock | None:
    """The paper's printed figures for the rows that have one, under its names of columns and rows; None for none."""
    printed = [(row, reference[row.key]) for row in rows if row.key in reference]
    if not printed:
        return None
    names = tuple(dict.fromkeys(name for _, paper in printed for name in paper.scores))
    averages = () if len(names) == 1 else (Column(AVERAGE, "Avg."),)
    columns = (*(Column(name, name) for name in names), *averages)
    lines = tuple(
        TableRow(
            row.key,
            paper.label,
            (*(Cell(paper.scores.get(name)) for name in names), *([Cell(paper.average)] if averages else [])),
            row.method,
            row.look,
        )
        for row, paper in printed
    )
    paper = printed[0][1]
    models = ", ".join(filter(None, dict.fromkeys(paper.model for _, paper in printed)))
    title = f"As printed in the paper ({paper.paper}){f': {models}' if models else ''}"
    title += "; it prints no average, this is the mean of its columns" * paper.averaged
    cells = [(*row.scores.values(), *([] if row.averaged else [row.average])) for _, row in printed]
    scores = [score for row in cells for score in row if score is not None]
    decimals = next(places for places in (0, 1, 2) if places == 2 or all(round(x, places) == x for x in scores))
    return ranked(TableBlock(title, columns, lines, decimals=decimals))


def _same_notes(spec: TableSpec, parts: Sequence[_TablePart], blocks: Sequence[TableBlock]) -> list[str]:
    """Notes on the rows that are another one, and on the range of the averages of those that should be equal."""
    notes = []
    floors: dict[str, list[str]] = {}  # "61.9 to 62.8 at learning_rate=4e-4"
    for block, part in zip(blocks, parts, strict=True):
        averages = block.column(AVERAGE)
        for label in dict.fromkeys(row.same_as for row in part.rows if row.same_as):
            names = "; ".join(row.label for row in part.rows if row.same_as == label)
            same = [averages[row.key].mean for row in part.rows if label in (row.label, row.same_as)]
            means = [mean for mean in same if mean is not None]
            where = f" at {part.title}" if part.title else ""
            span = f"{min(means):.1f} to {max(means):.1f}{where}" if means else ""
            floors.setdefault(f"{label} and {names}", []).append(span)
    if floors:
        spans = " ".join(f"{names}: {', '.join(filter(None, each))}." for names, each in floors.items())
        notes.append(
            f"{SAME} {IDENTICAL}: the first rewards are equal to six digits, until rounding parts the runs. So the "
            f"range of the averages is the noise floor, what rounding and luck alone do. {spans}"
        )
    same_keys = {row.key for row in spec.rows if row.same_as}
    labels = {row.key: row.shown for row in spec.rows}
    if groups := [
        " and ".join(map(labels.__getitem__, keys)) for block in blocks for keys in equal_rows(block, same_keys)
    ]:
        notes.append(f"{SAME} Equal in every cell: {'; '.join(groups)}.")
    return notes


def _notes(
    frame: pd.DataFrame,
    spec: TableSpec,
    parts: Sequence[_TablePart],
    blocks: Sequence[TableBlock],
    reaches: Sequence[float],
    family: int,
) -> list[str]:
    """reaches: of the blocks, the points of the average from which on rows are told apart from the best one."""
    if frame.empty:
        return ["nothing measured yet"]
    untrained = frame["row"].isin([row.key for row in spec.rows if row.method == UNTRAINED])
    seeds = sorted((frame if untrained.all() else frame[~untrained])["seed"].unique())
    means = any(column.key == MEAN for block in blocks for column in block.columns)
    mean = "Mean = plain mean over the benchmarks" if means else "the plain mean over the benchmarks is the same here"
    over = f"training seeds ({', '.join(map(str, seeds))}) and problems" if len(seeds) > 1 else "problems alone"
    notes = [
        f"Avg. = mean over all samples (micro-average); {mean}.",
        f"± = half of the 95% interval over {over} (bootstrap, clustered by problem); both ends where ± would leave "
        "0 to 100.",
    ]
    if any(cell.rank == 1 for block in blocks for row in block.rows for cell in row.cells):
        least = " to ".join(dict.fromkeys(f"{reach:.1f}" for reach in (min(reaches), max(reaches)))) if reaches else ""
        notes.append(
            "Bold: the best of a column, and what cannot be told apart from it: on the same problems and seeds p of "
            "their difference, by itself, is .05 or more."
            + f" Bold in Avg. cannot mean less than {least} points here: the difference from the best at which p falls "
            "below .05, the median over the rows." * bool(least)
        )
    few = len(seeds) < FEWEST_SEEDS and not untrained.all()
    if few:
        notes.append(FEW_SEEDS)
    if spec.baseline:
        at_setting = " at the same setting," if any(row.setting for row in spec.rows) else ""
        notes.append(
            f"Δ Avg. = points above {spec.baseline}{at_setting} on the same problems and seeds"
            + ("." if few else ", with the 95% interval of that comparison alone.")
        )
        if not few:
            notes.append(
                f"Verdict: p is Holm's over the {counted(family, 'comparison')} that this study declares, "
                "measured or not; better and worse are below .05. So an interval without 0 may be not decided."
            )
    notes += _same_notes(spec, parts, blocks)
    if ended := [f"{row.shown} ({', '.join(row.endings)})" for row in spec.rows if row.endings]:
        what = "Training ended early; measured on the weights before the step named"
        notes.append(f"{ENDED} {what}: {'; '.join(ended)}.")
    if frame.groupby("benchmark")["problem"].nunique().min() < FEWEST:
        notes.append(f"Fewer than {FEWEST} problems give no interval and no verdict.")
    measured = frame.groupby(["row", "benchmark"])["seed"].nunique()
    full_counts = {
        row.key: (1 if row.method == UNTRAINED else len(seeds)) * len(part.benchmarks)
        for part in parts
        for row in part.rows
    }
    if partial := [
        row.shown for row in spec.rows if row.key in measured and measured[row.key].sum() < full_counts[row.key]
    ]:
        notes.append(f"Seeds or benchmarks still to be measured: {'; '.join(partial)}.")
    return notes
