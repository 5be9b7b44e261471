"""Rows of a sweep compared over an axis whose values are draws of a population (`drawn:`), such as bases."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from tepo.common.text import setting_text
from tepo.evaluation.statistics.comparison import Pair, pair_rows
from tepo.evaluation.statistics.over_environments import over_environments
from tepo.reporting.tables.table import MISSING, NEW, Block, Cell, Column, Kind, TableRow, percent_cell
from tepo.studies.plan import Unit, row_key
from tepo.studies.study import Study
from tepo.studies.vary import shown_axes

_Keys = dict[str, dict[str, str]]  # label -> value of the drawn axis -> row key


def environment_blocks(study: Study, scale: str, units: Sequence[Unit], samples: pd.DataFrame) -> tuple[Block, ...]:
    """A block for each model and setting of the other axes: every row against the baseline, in the mean over the drawn
    axis. samples: as `read_samples` gives them. A row that lacks an environment has no figures."""
    axis = shown_axes(study.vary_at(scale))[study.scale(scale).drawn]
    groups: dict[tuple[str, str], _Keys] = {}
    first: dict[str, Unit] = {}
    models = {unit.model for unit in units}
    for unit in units:
        if unit.row.objective is not None:
            point = dict(unit.row.setting.point)
            value = point.pop(axis)
            group = groups.setdefault((unit.model if len(models) > 1 else "", setting_text(point)), {})
            group.setdefault(unit.row.label, {})[value] = row_key(unit)
            first.setdefault(unit.row.label, unit)
    blocks = []
    for where, rows in groups.items():
        base = rows.get(study.baseline or "", {})
        lines = [
            TableRow(label, label, _cells(samples, keys, base), first[label].row.objective or "",
                     look=first[label].row.look)
            for label, keys in rows.items() if label != study.baseline
        ]  # fmt: skip
        columns = (
            Column("these", f"Δ, these {len(base)}", Kind.DELTA),
            Column(NEW, "Δ, a new one", Kind.DELTA),
            Column("between", "SD between, points", Kind.TEXT),
        )
        baseline, part = study.baseline or "", ", ".join(filter(None, where))
        title = ", ".join(filter(None, (f"Against {baseline} in the mean over {axis}", part)))
        blocks.append(
            Block(title, columns, tuple(lines), notes=(_note(axis),), part=part, baseline=baseline, drawn=axis)
        )
    return tuple(blocks)


def _cells(samples: pd.DataFrame, keys: Mapping[str, str], base: Mapping[str, str]) -> tuple[Cell, ...]:
    pairs = [_pair(samples, key, base.get(value, "")) for value, key in keys.items()]
    known = [pair.cells for pair in pairs if pair and pair.cells]
    shapes = [{name: x.shape for name, x in cells.items()} for cells in known]
    if len(known) < len(base) or any(shape != shapes[0] for shape in shapes):
        return (MISSING,) * 3
    found = over_environments(known, next(pair.weights for pair in pairs if pair))
    between = Cell() if np.isnan(found.between) else Cell(text=f"{100 * found.between:.1f}")
    return (*(percent_cell(one.mean, one.low, one.high) for one in (found.these, found.new)), between)


def _pair(samples: pd.DataFrame, key: str, base: str) -> Pair | None:
    """A row minus the baseline in one environment; None where one of them is not measured."""
    two = samples[samples["row"].isin((key, base))]
    return pair_rows(two, base)[0] if two["row"].nunique() == 2 else None


def _note(axis: str) -> str:
    return (
        f"Both are the mean over {axis}. These: the 95% interval for other seeds and problems with the same values. A "
        f"new one: for a value of {axis} that is not among them, as far as these are a fair sample of such values. SD "
        "between: of the true differences. This describes; it decides nothing."
    )
