"""A sweep, the same rows at several settings: rows x settings, and the tolerance of each row to the setting (its best,
the range near it, and how much it depends on the choice)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from tepo.common.text import setting_text
from tepo.evaluation.statistics.comparison import AVERAGE
from tepo.evaluation.statistics.sensitivity import Interval, Sensitivity, sensitivity
from tepo.reporting.colours import UNTRAINED
from tepo.reporting.tables.build_table import RowSpec, equal_rows
from tepo.reporting.tables.table import MISSING, SAME, Block, Cell, Column, Kind, TableRow, percent_cell

NEAR, TOLERATED = 2.0, 10.0  # points below a row's best
BEST, LOST, ONE_FOR_ALL = "best", "lost", "one_for_all"


def sweep_blocks(rows: Sequence[RowSpec], measured: Sequence[Block]) -> tuple[Block, ...]:
    """Rows x values of the first axis, the average accuracy in each cell: a block a model and combination of the other
    axes. measured: the blocks of `build_table`, where the averages are."""
    averages = {
        row.key: cell
        for block in measured
        for row in block.rows
        for column, cell in zip(block.columns, row.cells, strict=True)
        if column.key == AVERAGE
    }
    seeds = max((len(row.seeds) for block in measured for row in block.rows), default=0)
    over = "± is over seeds and problems." if seeds > 1 else "± is over problems alone."
    identical = {_environment(row) + row.label for row in rows if row.same_as}
    blocks = []
    for block in _grids("Average accuracy", rows, averages, Kind.SCORE):
        same = {key for keys in equal_rows(block) for key in keys}
        lines = [
            replace(row, label=f"{row.label} {SAME}") if row.key in same or block.part + row.key in identical else row
            for row in block.rows
        ]
        blocks.append(replace(block, rows=tuple(lines), notes=(over,)))
    return tuple(blocks)


def realised_kl_blocks(rows: Sequence[RowSpec], found: Mapping[str, float]) -> tuple[Block, ...]:
    """Rows x values of the first axis, the realised KL in each cell. found: nats a token, by a row's key."""
    shown = {key: Cell(text=f"{kl:.3g}") for key, kl in found.items()}
    note = "Mean of actor/realised_kl_k3 over seeds and steps: how far the updates of a rollout take the policy."
    return tuple(replace(block, axis="", notes=(note,)) for block in _grids("Realised KL", rows, shown, Kind.TEXT))


def _grids(what: str, rows: Sequence[RowSpec], cells: Mapping[str, Cell], kind: Kind) -> list[Block]:
    """Rows x values of the first axis, a block for each environment; none is ranked."""
    groups: dict[str, list[RowSpec]] = {}
    for row in rows:
        groups.setdefault(_environment(row), []).append(row)
    grids = []
    for environment, part in groups.items():
        axis = next(iter(part[0].setting))
        columns = tuple(Column(f"{axis}={value}", value, kind) for value in {row.setting[axis]: None for row in part})
        lines = []
        for label, points in _by_label(part).items():
            at = {row.setting[axis]: cells.get(row.key, MISSING) for row in points}
            own = tuple(at[column.title] for column in columns)
            lines.append(TableRow(label, label, own, points[0].method, look=points[0].look))
        title = ", ".join(filter(None, (f"{what} by {axis}", environment)))
        grids.append(Block(title, columns, tuple(lines), part=environment, axis=axis))
    return grids


def environment_of(model: str, point: Mapping[str, str]) -> str:
    """Name of the model, empty where a study has one alone, and of the values of all axes but the first."""
    return ", ".join(filter(None, (model, setting_text(dict(list(point.items())[1:])))))


def _by_label(rows: Sequence[RowSpec]) -> dict[str, list[RowSpec]]:
    lines: dict[str, list[RowSpec]] = {}
    for row in rows:
        lines.setdefault(row.label, []).append(row)
    return lines


def _environment(row: RowSpec) -> str:
    return environment_of(row.model, row.setting)


def sensitivity_blocks(rows: Sequence[RowSpec], frame: pd.DataFrame) -> tuple[Block, ...]:
    """One block, of the rows that were measured on the complete grid, if there are any. The other axes and the models
    are the environments. frame: samples, as `build_table` takes them."""
    if not rows[0].setting:
        return ()
    axis = next(iter(rows[0].setting))
    known: dict[str, np.ndarray] = {}
    for key, part in frame.groupby("row", sort=False):
        wanted = next(set(row.benchmarks) for row in rows if row.key == key)
        grouped = part.groupby("seed")
        complete = grouped["benchmark"].nunique() >= len(wanted or set(frame["benchmark"]))
        known[str(key)] = grouped["correct"].mean()[complete].to_numpy(dtype=float)
    seeds = {key: values for key, values in known.items() if len(values)}
    environments = len({_environment(row) for row in rows})
    table = []
    for label, points in _by_label(rows).items():
        found = _sensitivity(points, axis, seeds)
        first = points[0]
        if found is not None and first.method != UNTRAINED:
            table.append(TableRow(label, label, _cells(found, environments > 1), first.method, look=first.look))
    if not table:
        return ()
    columns = (
        Column(BEST, "Best"),
        Column("at", f"at {axis}", Kind.TEXT),
        Column("near", f"within {NEAR:g} points", Kind.TEXT),
        Column("borne", f"within {TOLERATED:g} points up to", Kind.TEXT),
        Column(LOST, "Average loss against the best"),
        *([Column(ONE_FOR_ALL, "Sensitivity")] if environments > 1 else []),
    )
    title = f"What each row bears over {axis}, ± over seeds alone"
    return (Block(title, columns, tuple(table), notes=_notes(axis, environments)),)


def _notes(axis: str, environments: int) -> tuple[str, ...]:
    several = (
        f" Sensitivity: points lost where one value must serve all {environments} combinations of the other settings "
        "(Adkins et al. 2024)."
    )
    return (
        f"Best: at the best {axis} of the grid, chosen on these very problems, so a little too high. Average "
        f"loss against the best: points that a value drawn blindly loses.{several if environments > 1 else ''} "
        "Intervals: bootstrap over seeds. This describes; it decides nothing.",
    )


def _sensitivity(points: Sequence[RowSpec], axis: str, seeds: Mapping[str, np.ndarray]) -> Sensitivity | None:
    """Sensitivity of a row; None before all of the grid is measured, as a row that lacks the large values would seem to
    lose nothing."""
    if len({row.setting[axis] for row in points}) < 2 or any(row.key not in seeds for row in points):
        return None
    scores: dict[str, dict[str, np.ndarray]] = {}
    for row in points:
        scores.setdefault(_environment(row), {})[row.setting[axis]] = seeds[row.key]
    return sensitivity(scores)


def _cells(found: Sensitivity, several: bool) -> tuple[Cell, ...]:
    return (
        _percent(found.best),
        Cell(text=max(found.means, key=found.means.__getitem__)),
        Cell(text=_range(found, NEAR)),
        Cell(text=_largest(found.within(TOLERATED))),
        _percent(found.lost),
        *([_percent(found.one_for_all)] if several else []),
    )


def _percent(one: Interval) -> Cell:
    return percent_cell(one.value, one.low, one.high)


def _range(found: Sensitivity, points: float) -> str:
    """ "1e-4 to 4e-4" for numbers that follow each other on the grid, else the values."""
    grid, near = _ordered(list(found.means)), _ordered(found.within(points))
    start = grid.index(near[0])
    if len(near) > 1 and near == grid[start : start + len(near)] and _numbers(grid):
        return f"{near[0]} to {near[-1]}"
    return ", ".join(near)


def _largest(values: Sequence[str]) -> str:
    return _ordered(values)[-1] if _numbers(values) else ""


def _numbers(values: Sequence[str]) -> bool:
    try:
        return all(math.isfinite(float(value)) for value in values)
    except ValueError:
        return False


def _ordered(values: Sequence[str]) -> list[str]:
    return sorted(values, key=float) if _numbers(values) else list(values)
