"""Table of a study from samples on disk: one row per method, one column per benchmark, both averages, and the
difference to a baseline."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import pandas as pd

from tepo.common.errors import unknown_name
from tepo.common.text import counted, with_setting
from tepo.evaluation.statistics.comparison import (
    AVERAGE,
    COLUMNS,
    MEAN,
    Difference,
    Pair,
    check_frame,
    corrected,
    pair_rows,
    pairs_of,
    summarize,
)
from tepo.evaluation.statistics.comparison_verdict import FEWEST_SEEDS
from tepo.evaluation.statistics.intervals import FEWEST, LEVEL
from tepo.reporting.colours import UNTRAINED, Look
from tepo.reporting.paper.reference import PAPER, PAPER_BENCHMARKS, PaperRow
from tepo.reporting.tables.cells import format_interval, format_value
from tepo.reporting.tables.table import (
    BASELINE,
    FEW_SEEDS,
    IDENTICAL,
    MISSING,
    SAME,
    VERDICT,
    Block,
    Cell,
    Column,
    Comparison,
    Kind,
    Table,
    TableRow,
    percent_cell,
    ranked,
)

_ENDED = "†"


@dataclass(frozen=True)
class RowSpec:
    """A row of a study.

    key: what the samples' `row` column holds. method: the objective, it fixes the colour; UNTRAINED for the base model,
    which has no seeds. section: a heading over neighbouring rows (a panel). model: rows of different models are blocks
    of their own, ranked and compared apart. setting: in a sweep, each axis and the row's value: likewise.
    benchmarks: keys of those it is measured on, the same in all rows of a block; empty: all of the table.
    endings: of its runs that ended before their last step, with the seed. same_as: label of the row of its model and
    setting whose runs its own are, until rounding parts them; empty: none.
    """

    key: str
    label: str
    method: str = ""
    section: str = ""
    model: str = ""
    look: Look | None = None  # the row's own; None: its method's
    setting: Mapping[str, str] = field(default_factory=dict)
    benchmarks: Sequence[str] = ()
    endings: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()  # ids of its runs and benchmarks
    same_as: str = ""

    @property
    def shown(self) -> str:
        """The label and the setting."""
        return with_setting(self.label, self.setting)


@dataclass(frozen=True)
class Part:
    """The rows that are ranked and compared with each other, and their columns."""

    title: str
    rows: Sequence[RowSpec]
    benchmarks: Mapping[str, str]


@dataclass(frozen=True)
class TableSpec:
    """Content of a table: its blocks, rows and columns.

    rows: in the study's order; a row without samples becomes dashes. benchmarks: key -> printed name, in column order;
    samples of others are left out. baseline: label of the row that the other rows of a model and setting are compared
    with (adds the columns Δ and Verdict). family: comparisons that verdicts are corrected over, None for those of these
    rows. reference: row key -> printed row of the paper, shown in a block of its own under the paper's benchmark names.
    """

    rows: Sequence[RowSpec]
    benchmarks: Mapping[str, str]
    name: str
    title: str
    baseline: str | None = None
    family: int | None = None
    reference: Mapping[str, PaperRow] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def parts(self) -> list[Part]:
        """The rows of each model and setting."""
        groups: dict[str, list[RowSpec]] = {}
        for row in self.rows:
            groups.setdefault(with_setting(row.model, row.setting), []).append(row)
        return [Part(title, rows, self._titles(rows[0])) for title, rows in groups.items()]

    def _titles(self, row: RowSpec) -> dict[str, str]:
        return {key: name for key, name in self.benchmarks.items() if key in (row.benchmarks or self.benchmarks)}


def build_table(samples: pd.DataFrame, spec: TableSpec) -> Table:
    """The table of a study from its samples: one line per graded response, with the columns of
    `tepo.evaluation.statistics.comparison.COLUMNS`.

    Raises UserError for missing columns, an unknown baseline, or seeds of one row evaluated on different problems.
    """
    if spec.baseline is not None and spec.baseline not in {row.label for row in spec.rows}:
        raise unknown_name("baseline row", spec.baseline, (row.label for row in spec.rows), where=f"table {spec.name}")
    frame = _measured_samples(samples, spec)
    seeds = {str(row): part.unique().tolist() for row, part in frame.groupby("row")["seed"]}
    ranked_blocks = [_block(part, frame, seeds) for part in spec.parts()]
    blocks = _without_equal_mean([block for block, _ in ranked_blocks])
    comparisons: list[Comparison] = []
    if spec.baseline:
        pairs = _pairs(frame, spec)
        differences = corrected([pair.difference() for pair in pairs], _family(spec))
        measured = {pair.row: (one, pair) for one, pair in zip(differences, pairs, strict=True)}
        compared = [_compared(block, part, spec, measured) for block, part in zip(blocks, spec.parts(), strict=True)]
        blocks = [block for block, _ in compared]
        comparisons = [one for _, part in compared for one in part]
    printed = [reference_block(part.rows, spec.reference) for part in spec.parts()]
    return Table(
        spec.name,
        spec.title,
        (*(_marked(block, spec) for block in blocks), *(block for block in printed if block.rows)),
        (*_notes(frame, spec, blocks, [reach for _, reach in ranked_blocks if reach]), *spec.notes),
        tuple(comparisons),
    )


def _measured_samples(samples: pd.DataFrame, spec: TableSpec) -> pd.DataFrame:
    if samples.empty:
        return pd.DataFrame(columns=list(COLUMNS))
    check_frame(samples)
    shown = samples["row"].isin([row.key for row in spec.rows]) & samples["benchmark"].isin(list(spec.benchmarks))
    return samples[shown][list(COLUMNS)]


def _scores(frame: pd.DataFrame, part: Part) -> pd.DataFrame:
    """Scores of the rows of a part: an average is over all of its benchmarks."""
    measured = frame[frame["row"].isin([row.key for row in part.rows])]
    if measured.empty:
        return pd.DataFrame(columns=["row", "benchmark"])
    scores = summarize(measured)
    if set(measured["benchmark"].unique()) != set(part.benchmarks):  # an average over other samples: another number
        return scores[~scores["benchmark"].isin((AVERAGE, MEAN))]
    return scores


def _pairs(frame: pd.DataFrame, spec: TableSpec) -> list[Pair]:
    """Rows beside the baseline of their part."""
    pairs: list[Pair] = []
    for part in spec.parts():
        measured = _part_samples(part, frame)
        complete = set(measured["benchmark"].unique()) == set(part.benchmarks) and measured["row"].nunique() > 1
        for key in (row.key for row in part.rows if row.label == spec.baseline):
            if complete and (measured["row"] == key).any():
                pairs += pair_rows(measured, key)
    return pairs


def _family(spec: TableSpec) -> int:
    """Every row beside a baseline, measured or not."""
    compared = (part for part in spec.parts() if any(row.label == spec.baseline for row in part.rows))
    return sum(len(part.rows) - 1 for part in compared) if spec.family is None else spec.family


def _compared(
    block: Block, part: Part, spec: TableSpec, measured: Mapping[str, tuple[Difference, Pair]]
) -> tuple[Block, list[Comparison]]:
    """The block of a part with the columns Δ and Verdict, and what they show."""
    pairs = zip(block.rows, part.rows, strict=True)
    baseline = next((row for row, its in pairs if its.label == spec.baseline), None)
    comparisons = {
        row.key: Comparison(row, baseline, _printed(spec, row, baseline), *measured.get(row.key, (None, None)))
        for row in block.rows
        if baseline is not None and row is not baseline
    }
    same = {row.key for row in part.rows if row.same_as}
    rows = []
    for row in block.rows:
        one = comparisons.get(row.key)
        text = BASELINE if row is baseline else one.words if one else ""
        if row.key in same and text:
            text = IDENTICAL
        rows.append(replace(row, cells=(*row.cells, one.cell if one else MISSING, Cell(text=text))))
    against = f"Against {spec.baseline}"
    added = (Column("delta", "Δ Avg.", Kind.DELTA, against), Column(VERDICT, "Verdict", Kind.TEXT, against))
    columns = (*block.columns, *added)
    block = replace(block, columns=columns, rows=tuple(rows), baseline=spec.baseline or "")
    return block, list(comparisons.values())


def _marked(block: Block, spec: TableSpec) -> Block:
    """The block with marks at rows of which a run ended before its last step, and at those that are another one."""
    ended = {row.key for row in spec.rows if row.endings}
    same = {row.key for row in spec.rows if row.same_as} | {key for group in equal_rows(block) for key in group}
    rows = []
    for row in block.rows:
        marks = [mark for mark, keys in ((_ENDED, ended), (SAME, same)) if row.key in keys]
        rows.append(replace(row, label=" ".join([row.label, *marks])))
    return replace(block, rows=tuple(rows))


def equal_rows(block: Block, known: Collection[str] = ()) -> list[list[str]]:
    """Keys of the rows that agree in every score of a block, two or more together. known: rows that are left out."""
    scores = [index for index, column in enumerate(block.columns) if column.kind is Kind.SCORE]
    groups: dict[tuple[Cell, ...], list[str]] = {}
    for row in block.rows:
        cells = tuple(row.cells[index] for index in scores)
        if row.key not in known and all(cell.mean is not None for cell in cells):
            groups.setdefault(cells, []).append(row.key)
    return [keys for keys in groups.values() if len(keys) > 1]


def _printed(spec: TableSpec, row: TableRow, baseline: TableRow) -> float | None:
    """The difference of the printed averages, in points; None where the paper has not both."""
    if row.key not in spec.reference or baseline.key not in spec.reference:
        return None
    return spec.reference[row.key].average - spec.reference[baseline.key].average


def _part_samples(part: Part, frame: pd.DataFrame) -> pd.DataFrame:
    """Samples of the rows of a part, ready to be compared seed by seed."""
    measured = frame[frame["row"].isin([row.key for row in part.rows])]
    return _same_seeds(measured, {row.key for row in part.rows if row.method == UNTRAINED})


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


def _block(part: Part, frame: pd.DataFrame, seeds: Mapping[str, Sequence[int]]) -> tuple[Block, float | None]:
    """The block of a part, and the points of its average from which on rows are told apart; None where none is."""
    scores = _scores(frame, part)
    columns = [Column(key, name, group="Benchmarks") for key, name in part.benchmarks.items()]
    columns += [Column(key, name, group="All of them") for key, name in ((AVERAGE, "Avg."), (MEAN, "Mean"))]
    measured = {
        (line.row, line.benchmark): percent_cell(line.mean, line.low, line.high, line.samples)
        for line in scores.itertuples()
    }
    lines = []
    for row in part.rows:
        cells = tuple(measured.get((row.key, column.key), MISSING) for column in columns)
        lines.append(
            TableRow(
                row.key,
                row.shown,
                cells,
                row.method,
                row.section,
                row.look,
                row.measured,
                tuple(map(int, seeds.get(row.key, ()))),
            )
        )
    title = f"Measured: {part.title}" if part.title else "Measured"
    beside = _beside_best(part, frame, scores)
    alike = {key: {one.row for one in found if not _apart(one)} for key, found in beside.items()}
    block = ranked(Block(title, tuple(columns), tuple(lines), part=part.title), alike)
    halves = [one.half for one in beside.get(AVERAGE, ()) if one.seeds >= FEWEST_SEEDS]
    return block, 100 * median(halves) if halves else None


def _apart(one: Difference) -> bool:
    """True where a row differs from the best one by a p below 5%, by itself; never under too few seeds."""
    return one.seeds >= FEWEST_SEEDS and one.p < 1 - LEVEL


def _beside_best(part: Part, frame: pd.DataFrame, scores: pd.DataFrame) -> dict[str, list[Difference]]:
    """By column its rows beside the best one, on the same seeds and problems. Left out: columns in which no row can be
    told apart, as they have one row, no intervals, or too few seeds."""
    best: dict[str, list[str]] = {}
    for column, lines in scores.groupby("benchmark", sort=False):
        if len(lines) > 1 and lines["low"].notna().all():
            best.setdefault(str(lines.loc[lines["mean"].idxmax(), "row"]), []).append(str(column))
    beside: dict[str, list[Difference]] = {}
    for pair in pairs_of(_part_samples(part, frame), best) if best else ():
        one = pair.difference()
        beside.setdefault(one.benchmark, []).append(one)
    return {column: found for column, found in beside.items() if any(one.seeds >= FEWEST_SEEDS for one in found)}


def _without_equal_mean(blocks: Sequence[Block]) -> list[Block]:
    """The blocks without the column Mean where in every row it is what Avg. is, as printed."""

    def printed(block: Block, cells: Mapping[str, Cell], key: str) -> tuple[str, str]:
        shown = cells[key], Column(key, key), block.decimals
        return format_value(*shown), format_interval(*shown)

    rows = [
        (block, {column.key: cell for column, cell in zip(block.columns, row.cells, strict=True)})
        for block in blocks
        for row in block.rows
    ]
    measured = [one for one in rows if one[1][AVERAGE].mean is not None]
    if not measured or any(printed(*one, AVERAGE) != printed(*one, MEAN) for one in measured):
        return list(blocks)
    return [_without_mean(block) for block in blocks]


def _without_mean(block: Block) -> Block:
    kept = [index for index, column in enumerate(block.columns) if column.key != MEAN]
    rows = tuple(replace(row, cells=tuple(row.cells[index] for index in kept)) for row in block.rows)
    return replace(block, columns=tuple(block.columns[index] for index in kept), rows=rows)


def reference_block(rows: Sequence[RowSpec], reference: Mapping[str, PaperRow]) -> Block:
    """The paper's printed figures for the rows that have one, under the paper's benchmark names and labels."""
    columns = (*(Column(key, name) for key, name in PAPER_BENCHMARKS.items()), Column(AVERAGE, "Avg."))
    printed = [(row, reference[row.key]) for row in rows if row.key in reference]
    lines = tuple(
        TableRow(
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


def _same_notes(spec: TableSpec, blocks: Sequence[Block]) -> list[str]:
    """Notes on the rows that are another one, and on the range of the averages of those that should be equal."""
    notes = []
    floors: dict[str, list[str]] = {}
    for block, part in zip(blocks, spec.parts(), strict=True):
        for label in dict.fromkeys(row.same_as for row in part.rows if row.same_as):
            names = "; ".join(row.label for row in part.rows if row.same_as == label)
            floors.setdefault(f"{label} and {names}", []).append(_floor(block, part, label))
    if floors:
        said = " ".join(f"{names}: {', '.join(filter(None, ranges))}." for names, ranges in floors.items())
        notes.append(
            f"{SAME} {IDENTICAL}: the first rewards are equal to six digits, until rounding parts the runs. So the "
            f"range of the averages is the noise floor, what rounding and luck alone do. {said}"
        )
    known = {row.key for row in spec.rows if row.same_as}
    shown = {row.key: row.shown for row in spec.rows}
    if groups := [" and ".join(map(shown.__getitem__, keys)) for one in blocks for keys in equal_rows(one, known)]:
        notes.append(f"{SAME} Equal in every cell: {'; '.join(groups)}.")
    return notes


def _floor(block: Block, part: Part, label: str) -> str:
    """The range of the averages of a row and those that are the same: "61.9 to 62.8 at learning_rate=4e-4"."""
    place = next(index for index, column in enumerate(block.columns) if column.key == AVERAGE)
    same = {row.key for row in part.rows if label in (row.label, row.same_as)}
    means = [mean for row in block.rows if row.key in same and (mean := row.cells[place].mean) is not None]
    where = with_setting(part.rows[0].model, part.rows[0].setting)
    return f"{min(means):.1f} to {max(means):.1f}{f' at {where}' if where else ''}" if means else ""


def _notes(frame: pd.DataFrame, spec: TableSpec, blocks: Sequence[Block], reaches: Sequence[float]) -> list[str]:
    """reaches: of the blocks, the points of the average from which on rows are told apart from the best one."""
    if frame.empty:
        return ["nothing measured yet"]
    untrained = frame["row"].isin([row.key for row in spec.rows if row.method == UNTRAINED])
    seeds = sorted((frame if untrained.all() else frame[~untrained])["seed"].unique())
    means = any(column.key == MEAN for block in blocks for column in block.columns)
    mean = "Mean = plain mean over the benchmarks" if means else "the plain mean over the benchmarks is the same here"
    over = f"training seeds ({', '.join(map(str, seeds))}) and problems" if len(seeds) > 1 else "problems alone"
    notes = [
        f"Avg. = mean over all samples (the paper's micro-average); {mean}.",
        f"± = half of the 95% interval over {over} (bootstrap, clustered by problem); both ends where ± would leave "
        "0 to 100.",
    ]
    if any(cell.rank == 1 for block in blocks for row in block.rows for cell in row.cells):
        least = " to ".join(dict.fromkeys(f"{reach:.1f}" for reach in (min(reaches), max(reaches)))) if reaches else ""
        notes.append(
            "Bold: the best of a column, and what cannot be told apart from it: on the same problems and seeds p of "
            "their difference, by itself, is .05 or more."
            + (
                f" Bold in Avg. cannot mean less than {least} points here: the difference from the best at which p "
                "falls below .05, the median over the rows."
                if least
                else ""
            )
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
                f"Verdict: p is Holm's over the {counted(_family(spec), 'comparison')} that this study declares, "
                "measured or not; better and worse are below .05. So an interval without 0 may be not decided."
            )
    notes += _same_notes(spec, blocks)
    if ended := [f"{row.shown} ({', '.join(row.endings)})" for row in spec.rows if row.endings]:
        what = "Training ended early; measured on the weights before the step named"
        notes.append(f"{_ENDED} {what}: {'; '.join(ended)}.")
    if frame.groupby("benchmark")["problem"].nunique().min() < FEWEST:
        notes.append(f"Fewer than {FEWEST} problems give no interval and no verdict.")
    measured = frame.groupby(["row", "benchmark"])["seed"].nunique()
    wanted = {
        row.key: (1 if row.method == UNTRAINED else len(seeds)) * len(part.benchmarks)
        for part in spec.parts()
        for row in part.rows
    }
    if partial := [row.shown for row in spec.rows if row.key in measured and measured[row.key].sum() < wanted[row.key]]:
        notes.append(f"Seeds or benchmarks still to be measured: {'; '.join(partial)}.")
    return notes
