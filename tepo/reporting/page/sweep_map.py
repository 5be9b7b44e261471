"""A sweep as a map: method x setting, shaded by accuracy, the rows that lose least first, cells whose runs ended early
hatched; each cell leads to the curves of its seeds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from markupsafe import Markup

from tepo.reporting.page.excerpts import ShownExcerpt, shown_excerpt
from tepo.reporting.page.packed import packed
from tepo.reporting.tables.cells import format_interval, format_value
from tepo.reporting.tables.renderers.html_table import swatch
from tepo.reporting.tables.sweep_table import LOST
from tepo.reporting.tables.table import SAME, Block, Cell, Column, Table, TableRow
from tepo.store.excerpt import Excerpt

_SCORE = Column("", "")


@dataclass(frozen=True)
class CellRuns:
    """The runs behind a cell. figure, label: the figure that holds their curves, and their row in it. seeds: seed, id
    and ending of each ("" for one that trained to its last step). recorded: they are read from records. excerpts: by
    id, of runs that fell."""

    figure: str
    label: str
    seeds: tuple[tuple[int, str, str], ...]
    recorded: bool = False
    excerpts: Mapping[str, Excerpt] = field(default_factory=dict)

    @property
    def ended(self) -> int:
        """Number of runs that ended early; one that ended because all its answers were right is no failure."""
        return sum(bool(ending) and not ending.startswith("saturation") for *_, ending in self.seeds)


@dataclass(frozen=True)
class MapCell:
    """share: of the map's highest average, 0 to 1, None where nothing was measured."""

    text: str
    interval: str
    mean: float | None
    share: float | None
    runs: CellRuns | None

    @property
    def ended(self) -> str:
        """Seeds that ended early, as text; empty for none."""
        if self.runs is None or not self.runs.ended:
            return ""
        return f"{self.runs.ended} of {len(self.runs.seeds)} ended"


@dataclass(frozen=True)
class MapRow:
    """same: its runs or its averages are those of another row. lost: average loss over the grid against the row's best,
    in points; None before all of it is measured."""

    label: str
    swatch: Markup
    cells: tuple[MapCell, ...]
    lost: float | None
    same: bool


@dataclass(frozen=True)
class SweepMap:
    """name: unique on the page. axis, values: what varies."""

    name: str
    title: str
    axis: str
    values: tuple[str, ...]
    rows: tuple[MapRow, ...]

    @property
    def ended(self) -> bool:
        """True where a cell is hatched."""
        return any(cell.ended for row in self.rows for cell in row.cells)

    @property
    def excerpts(self) -> list[ShownExcerpt]:
        """Excerpts of all cells."""
        return [
            shown_excerpt(run, f"{row.label}, {self.axis}={value}, seed {seed}", cell.runs.excerpts[run])
            for row in self.rows
            for value, cell in zip(self.values, row.cells, strict=True)
            if cell.runs
            for seed, run, _ in cell.runs.seeds
            if run in cell.runs.excerpts
        ]

    @property
    def data(self) -> str:
        """Packed for the page's script: of each row its label and each cell's average, interval and runs."""
        rows = [[row.label, [_plain(cell) for cell in row.cells]] for row in self.rows]
        return packed({"axis": self.axis, "values": self.values, "rows": rows})


Known = Mapping[tuple[str, str, str], CellRuns]
"""Part of the block, row and value -> what is behind the cell."""


def sweep_maps(table: Table, known: Known) -> tuple[SweepMap, ...]:
    """One for each measured block of a sweep."""
    lost = _lost(table)
    blocks = [block for block in table.blocks if block.axis and _means(block)]
    return tuple(_map(f"{table.name}-{number}", block, lost, known) for number, block in enumerate(blocks, start=1))


def _map(name: str, block: Block, lost: Mapping[str, float], known: Known) -> SweepMap:
    highest = max(_means(block)) or 1.0
    values = tuple(column.title for column in block.columns)
    rows = [
        MapRow(
            row.label.removesuffix(f" {SAME}"),
            Markup(swatch(row.look, row.method)),
            tuple(
                _cell(cell, highest, known.get((block.part, row.key, value)))
                for cell, value in zip(row.cells, values, strict=True)
            ),
            lost.get(row.key),
            row.label.endswith(SAME),
        )
        for row in block.rows
    ]
    rows.sort(key=lambda row: (row.lost is None, row.lost or 0.0))
    return SweepMap(name, block.title, block.axis, values, tuple(rows))


def _cell(cell: Cell, highest: float, runs: CellRuns | None) -> MapCell:
    if cell.mean is None:
        return MapCell("–", "", None, None, runs)
    share = round(max(cell.mean, 0.0) / highest, 3)
    return MapCell(format_value(cell, _SCORE, 1), format_interval(cell, _SCORE, 1), cell.mean, share, runs)


def _plain(cell: MapCell) -> list[object]:
    runs = cell.runs and [cell.runs.figure, cell.runs.label, cell.runs.seeds, cell.runs.recorded]
    return [cell.mean, cell.text, cell.interval, runs]


def _means(block: Block) -> list[float]:
    return [cell.mean for row in block.rows for cell in row.cells if cell.mean is not None]


def _lost(table: Table) -> dict[str, float]:
    """Average loss of each row, as the table says; a row of several maps loses the same in all."""
    return {row.key: mean for block in table.blocks for row, mean in _column(block, LOST)}


def _column(block: Block, key: str) -> list[tuple[TableRow, float]]:
    index = next((place for place, column in enumerate(block.columns) if column.key == key), None)
    if index is None:
        return []
    return [(row, mean) for row in block.rows if (mean := row.cells[index].mean) is not None]
