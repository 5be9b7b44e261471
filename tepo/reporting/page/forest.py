"""Forest plots: of a table each row's difference to its baseline with its interval, and as text the paper's printed
one, which is of other models on other problems and has no place on our axis; of registered claims A above B beside the
differences that each claim says.

Positions are shares of the plot's width in percent, so that the page can draw it at any width.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tepo.evaluation.statistics.comparison_verdict import Verdict
from tepo.evaluation.statistics.region import Outcome
from tepo.reporting.colours import UNTRAINED
from tepo.reporting.figures.claims_figure import ClaimLine, by_unit
from tepo.reporting.headline import compared
from tepo.reporting.tables.cells import format_interval, format_value, number_text
from tepo.reporting.tables.renderers.html_table import swatch
from tepo.reporting.tables.table import IDENTICAL, Block, Cell, Column, Kind, Table

_COLUMN = Column("delta", "", Kind.DELTA)
_MARKS: dict[str, str] = {
    Verdict.BETTER: "better",
    Verdict.WORSE: "worse",
    Verdict.EQUIVALENT: "equivalent",
    Verdict.NOT_DECIDED: "noise",
    Verdict.UNDECIDED: "noise",
    Verdict.NO_VERDICT: "noise",
    IDENTICAL: "noise",
    Outcome.HOLDS: "holds",
    Outcome.REFUTED: "refuted",
    Outcome.UNDECIDED: "noise",
}
_REACH = 8  # the scale ends at this many times the middle of all ends: one collapsed run must not flatten the others
_INTERVALS = 4  # of the scale, about


@dataclass(frozen=True)
class Line:
    """One row. at, low, high: positions. mark: the shape of the verdict. printed: the paper's difference as text, empty
    where it has none. beyond: the sides on which the interval leaves the scale. regions: first and last position of
    what a claim says; pair: A against B; details: what else is known of it."""

    label: str
    swatch: str
    verdict: str
    mark: str
    text: str
    interval: str
    at: float
    low: float
    high: float
    beyond: tuple[str, ...]
    printed: str = ""
    regions: tuple[tuple[float, float], ...] = ()
    pair: str = ""
    details: str = ""


@dataclass(frozen=True)
class Forest:
    """The comparisons of a block. ticks: position and text. zero: the position of no difference."""

    title: str
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...]
    zero: float

    @property
    def printed(self) -> bool:
        """True where the paper has any of these differences."""
        return any(line.printed for line in self.lines)

    @property
    def claimed(self) -> bool:
        """True where lines show what a claim says."""
        return any(line.regions for line in self.lines)


def forests(table: Table) -> list[Forest]:
    """One for each block whose rows are compared and measured; a block of one comparison too."""
    paper = {one.row.key: one.paper for one in table.comparisons if one.paper is not None}
    return [one for block in table.blocks if (one := _forest(table, block, paper))]


def claim_forests(claims: Sequence[ClaimLine]) -> list[Forest]:
    """One for each unit of the measured claims."""
    return [_claim_forest(unit, part) for unit, part in by_unit(claims).items()]


def _claim_forest(unit: str, claims: Sequence[ClaimLine]) -> Forest:
    stated = [end for one in claims for region in one.regions for end in region if math.isfinite(end)]
    scale = _Scale.over([*stated, *(end for one in claims for end in (one.low, one.delta, one.high))])
    lines = [
        replace(
            _line(
                one.sentence,
                "",
                Cell(one.delta, one.low, one.high),
                (_MARKS.get(one.outcome, "noise"), one.outcome),
                scale,
            ),
            regions=tuple((scale.edge(low), scale.edge(high)) for low, high in one.regions),
            pair=one.pair,
            details=one.details,
        )
        for one in claims
    ]
    return Forest(f"A above B, {unit}", tuple(lines), scale.marked(), scale.position(0.0))


def _forest(table: Table, block: Block, paper: Mapping[str, float]) -> Forest | None:
    rows = compared(block)
    if not rows:
        return None
    # the untrained model may lie beyond the scale
    trained = [cell for row, cell, _ in rows if row.method != UNTRAINED] or [cell for _, cell, _ in rows]
    scale = _Scale.over([end for cell in trained for end in (cell.low, cell.mean, cell.high) if end is not None])
    known = {row.key for row, _, verdict in rows if verdict in list(Verdict)}
    long = {one.row.key: one.long_words for one in table.comparisons if one.row.key in known}
    lines = []
    for row, cell, verdict in rows:
        words = (_MARKS.get(verdict, "none"), long.get(row.key, verdict))
        line = _line(block.label(row), swatch(row.look, row.method), cell, words, scale)
        printed = format_value(Cell(paper[row.key]), _COLUMN, 2) if row.key in paper else ""
        lines.append(replace(line, printed=printed))
    against = f"difference of the average to {block.baseline}, in points"
    title = ": ".join(filter(None, (table.title, block.part, against)))
    return Forest(title, tuple(lines), scale.marked(), scale.position(0.0))


def _line(label: str, look: str, cell: Cell, words: tuple[str, str], scale: "_Scale") -> Line:
    """words: the mark of the verdict, and what is said of it."""
    assert cell.mean is not None
    low, high = (cell.mean if end is None else end for end in (cell.low, cell.high))
    return Line(
        label=label,
        swatch=look,
        mark=words[0],
        verdict=words[1],
        text=format_value(cell, _COLUMN, 1),
        interval=format_interval(cell, _COLUMN, 1),
        at=scale.position(cell.mean),
        low=scale.position(low),
        high=scale.position(high),
        beyond=scale.beyond(low, high),
    )


@dataclass(frozen=True)
class _Scale:
    """ticks: rising, the first and last are the ends."""

    ticks: tuple[float, ...]

    @classmethod
    def over(cls, known: Sequence[float]) -> "_Scale":
        """Scale from the smallest to the largest end, 0 always within."""
        sizes = sorted(map(abs, known))
        reach = _REACH * sizes[len(sizes) // 2] or 1.0
        values = [min(max(value, -reach), reach) for value in (0.0, *known)]
        # The next of 1, 2, 5 times a power of ten
        size = max(max(values) - min(values), 0.1) / _INTERVALS
        power = 10.0 ** math.floor(math.log10(size))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= size * (1 - 1e-9))
        first, last = math.floor(min(values) / step), math.ceil(max(values) / step)
        return cls(tuple(step * number for number in range(first, max(last, first + 1) + 1)))

    def marked(self) -> tuple[tuple[float, str], ...]:
        """Position and text of each tick."""
        texts = [number_text(value, 6, "+").rstrip("0").rstrip(".") or "0" for value in self.ticks]
        return tuple((self.position(value), text) for value, text in zip(self.ticks, texts, strict=True))

    def edge(self, value: float) -> float:
        """Percent of the width of the end of a region, at the edge of the plot where it leaves the scale."""
        if self.ticks[0] <= value <= self.ticks[-1]:
            return self.position(value)
        return 0.0 if value < 0 else 100.0

    def position(self, value: float) -> float:
        """Percent of the width, within its margins."""
        low, high = self.ticks[0], self.ticks[-1]
        return round(4 + 92 * (min(max(value, low), high) - low) / (high - low), 2)

    def beyond(self, low: float, high: float) -> tuple[str, ...]:
        ends = ((low < self.ticks[0], "left"), (high > self.ticks[-1], "right"))
        return tuple(side for outside, side in ends if outside)
