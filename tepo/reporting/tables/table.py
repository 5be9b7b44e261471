"""Model of a result table: typed cells with uncertainty, in blocks that are never mixed.

A number that was not measured is a missing cell (a dash), never a zero. The paper's figures stand in a block of their
own, under the paper's benchmark names. `tepo.reporting.tables.build_table` makes tables from samples,
`tepo.reporting.tables.render` prints them.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from tepo.common.text import counted
from tepo.evaluation.statistics.answer import Answer
from tepo.evaluation.statistics.verdict import FEWEST_SEEDS, LEVEL, DeltaVerdict
from tepo.reporting.colours import Look


class Kind(StrEnum):
    """Content of a column. Only SCORE columns are ranked; a DELTA carries its sign."""

    SCORE = "score"
    DELTA = "delta"
    TEXT = "text"


@dataclass(frozen=True)
class Cell:
    mean: float | None = None  # percent; points for a delta
    low: float | None = None  # ends of the 95% interval, None when there is none
    high: float | None = None
    n: int = 0  # samples behind the mean
    rank: int = 0  # 1 best of its column or not told apart from it, 2 second, 0 otherwise
    text: str = ""  # of TEXT columns, and in place of a mean that cannot be stated


MISSING = Cell()
VERDICT = "verdict"  # the column of words for a difference
OUTCOME = "claim"  # that of a registered claim's outcome
BASELINE = "baseline"  # the word where other rows have a verdict
IDENTICAL = "identical here"  # the same, of a row whose runs are those of another until rounding parts them
ENDED = "†"  # mark of a row with runs that ended early
SAME = "≡"  # mark of such a row, and of one that agrees with another in every cell
FEW_SEEDS = (
    f"Fewer than {FEWEST_SEEDS} seeds: differences of these trained models alone, without interval, verdict and bold. "
    "Another seed, or the same one on another CPU, trains others."
)
_EXACT = 9  # decimals to which a sum of shares is exact


def percent_cell(mean: float, low: float, high: float, samples: int = 0) -> Cell:
    """Shares as percent; without an interval where there is none, MISSING for NaN."""
    if math.isnan(mean):
        return MISSING
    return Cell(100 * mean, n=samples) if math.isnan(low) else Cell(100 * mean, 100 * low, 100 * high, samples)


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    kind: Kind = Kind.SCORE


@dataclass(frozen=True)
class TableRow:
    key: str
    label: str
    cells: tuple[Cell, ...]
    method: str = ""
    look: Look | None = None  # in figures and on the page, the same for this row everywhere; None: that of `method`
    measured: tuple[str, ...] = ()  # ids of the runs and benchmarks behind it
    seeds: tuple[int, ...] = ()  # those measured
    sentence: str = ""  # what it is about, where the label is a name
    note: str = ""  # what a reader must know beside its numbers


@dataclass(frozen=True)
class TableBlock:
    """Rows under one set of columns."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    decimals: int = 1  # digits printed after the point, and the precision of ties
    notes: tuple[str, ...] = ()
    part: str = ""  # the model or setting that the title says, where a table has several
    baseline: str = ""  # label of the row that the others are compared with
    axis: str = ""  # what the columns are values of, in a sweep's table of rows x settings
    drawn: str = ""  # the axis over whose values, draws of a population, the rows are compared

    def label(self, row: TableRow) -> str:
        """The row's label without the setting that the title says already."""
        return row.label.replace(f", {self.part}", "") if self.part else row.label

    def column(self, key: str) -> dict[str, Cell]:
        """The cells of a column by the keys of their rows; empty where the block has no such column."""
        places = [place for place, column in enumerate(self.columns) if column.key == key]
        return {row.key: row.cells[place] for place in places for row in self.rows}

    def with_columns(self, places: Iterable[int]) -> "TableBlock":
        """The block with these of its columns, in this order."""
        chosen = list(places)
        rows = tuple(replace(row, cells=tuple(row.cells[place] for place in chosen)) for row in self.rows)
        return replace(self, columns=tuple(self.columns[place] for place in chosen), rows=rows)


@dataclass(frozen=True)
class RowComparison:
    """A row beside the baseline of its block."""

    row: TableRow
    baseline: TableRow
    paper: float | None  # the printed difference of their averages, in points; None where the paper has not both
    measured: Answer | None  # ours; None where a row was not measured
    same_as: str = ""  # label of the row whose runs its own are here, until rounding parts them

    @property
    def cell(self) -> Cell:
        """The measured difference in points."""
        return MISSING if self.measured is None else difference_cell(self.measured)

    @property
    def words(self) -> str:
        """The verdict with its corrected p: "better (p = .012)". Empty where a row was not measured."""
        return "" if self.measured is None else verdict_words(self.measured)


@dataclass(frozen=True)
class Table:
    name: str  # the study ("panel_e"), also the stem of files
    title: str
    blocks: tuple[TableBlock, ...]
    notes: tuple[str, ...] = ()  # one line each, printed below everything
    comparisons: tuple[RowComparison, ...] = ()  # what the columns Δ and Verdict show
    command: str = ""  # what runs what was not measured; empty: nothing lacks

    def cells(self) -> Iterator[tuple[TableBlock, TableRow, Column, Cell]]:
        """Every cell with its place, block after block and row after row."""
        for block in self.blocks:
            for row in block.rows:
                for column, cell in zip(block.columns, row.cells, strict=True):
                    yield block, row, column, cell


def difference_cell(answer: Answer) -> Cell:
    """A difference in points with its interval; without one where its seeds are too few."""
    low, high = answer.interval
    return percent_cell(answer.delta, math.nan if answer.few else low, high)


def verdict_in(text: str) -> str:
    """The verdict that a cell of words begins or ends with; its first words where it is none."""
    return next(
        (str(word) for word in DeltaVerdict if text.startswith(word) or text.endswith(word)), text.partition(":")[0]
    )


def verdict_words(answer: Answer, unit: str = "seed") -> str:
    """A verdict with the p behind it, or with the seeds, or other units, that are too few for one."""
    if answer.few:
        return f"{counted(len(answer.question.sample), unit)}: {answer.verdict}"
    return f"{answer.verdict} ({p_text(answer.p)})" if answer.decides else str(answer.verdict)


def p_text(p: float) -> str:
    """A p-value as papers print it, on the side of the level where it lies: "p = .012", "p = .21", "p < .001"."""
    if p < 0.001:
        return "p < .001"
    if p > 0.995:
        return "p = 1"
    digits, level = 2 if p >= 0.1 else 3, round(1 - LEVEL, _EXACT)
    while (round(p, digits) < level) != (p < level):
        digits += 1
    return f"p = {p:.{digits}f}".replace("0.", ".")


def ranked(block: TableBlock, alike: Mapping[str, Collection[str]] | None = None) -> TableBlock:
    """The block with rank 1 (best) and 2 (second) set in every SCORE column. alike: of the columns that are ranked, the
    keys of the rows that cannot be told apart from the best one, which have rank 1 too; then none is second.

    Equal at the printed precision is equal: a reader must not see 34.2 in bold beside a plain 34.2. A column with fewer
    than two measured rows is not ranked.
    """
    rows = [list(row.cells) for row in block.rows]
    for place, column in enumerate(block.columns):
        means = [
            None if (cell_mean := cells[place].mean) is None else rounded(cell_mean, block.decimals) for cells in rows
        ]
        values = sorted({mean for mean in means if mean is not None}, reverse=True)
        if column.kind is not Kind.SCORE or sum(mean is not None for mean in means) < 2:
            continue
        if alike is not None and column.key not in alike:
            continue
        for row, cells, mean in zip(block.rows, rows, means, strict=True):
            rank = values.index(mean) + 1 if mean is not None else 0
            if alike is not None:
                rank = int(rank == 1 or row.key in alike[column.key])
            if rank in (1, 2):
                cells[place] = replace(cells[place], rank=rank)
    return replace(
        block, rows=tuple(replace(row, cells=tuple(cells)) for row, cells in zip(block.rows, rows, strict=True))
    )


def rounded(value: float, decimals: int) -> float:
    """As printed. A share of samples often lies between two printed figures (70.75). The order of a sum must not choose
    one of them: the same share is the same figure in every table."""
    return round(round(value, _EXACT), decimals)
