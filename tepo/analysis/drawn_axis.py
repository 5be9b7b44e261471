"""Rows of a sweep compared over an axis whose values are draws of a population (`drawn:`), such as bases."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from tepo.common.text import counted, setting_text
from tepo.evaluation.statistics.comparison import AVERAGE, Difference, Pair, corrected, difference_of, pair_rows
from tepo.evaluation.statistics.over_environments import OverEnvironments, over_environments
from tepo.reporting.tables.table import (
    MISSING,
    VERDICT,
    Block,
    Cell,
    Column,
    Kind,
    TableRow,
    difference_cell,
    percent_cell,
    verdict_words,
)
from tepo.studies.plan import Unit, row_key
from tepo.studies.study import Study
from tepo.studies.vary import shown_axes

_Keys = dict[str, dict[str, str]]  # label -> value of the drawn axis -> row key


def environment_blocks(study: Study, scale: str, units: Sequence[Unit], samples: pd.DataFrame) -> tuple[Block, ...]:
    """A block for each model and setting of the other axes: every row against the baseline, in the mean over the drawn
    axis. samples: as `read_samples` gives them. A row that lacks an environment has no figures. Verdicts are corrected
    over all rows of all blocks, measured or not."""
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
    found = {
        (where, label): _over(samples, keys, rows.get(study.baseline or "", {}))
        for where, rows in groups.items()
        for label, keys in rows.items()
        if label != study.baseline
    }
    averages = [_average(label, one) for (_, label), one in found.items()]
    judged = dict(zip(found, corrected(averages), strict=True))
    blocks = []
    for where, rows in groups.items():
        lines = [
            TableRow(label, label, _cells(found[where, label], judged[where, label], axis),
                     first[label].row.objective or "", look=first[label].row.look)
            for label in rows if label != study.baseline
        ]  # fmt: skip
        baseline, part = study.baseline or "", ", ".join(filter(None, where))
        columns = (
            Column("these", f"Δ, these {len(rows.get(baseline, {}))}", Kind.DELTA),
            Column("delta", "Δ, on average", Kind.DELTA),
            Column("one", "Δ, one more", Kind.DELTA),
            Column("between", "SD between, points", Kind.TEXT),
            Column(VERDICT, "Verdict, on average", Kind.TEXT),
        )
        title = ", ".join(filter(None, (f"Against {baseline} in the mean over {axis}", part)))
        notes = (_note(axis, len(found)),)
        blocks.append(Block(title, columns, tuple(lines), notes=notes, part=part, baseline=baseline, drawn=axis))
    return tuple(blocks)


def _over(samples: pd.DataFrame, keys: Mapping[str, str], base: Mapping[str, str]) -> OverEnvironments | None:
    """A row beside the baseline over all environments; None where it lacks one."""
    pairs = [_pair(samples, key, base.get(value, "")) for value, key in keys.items()]
    known = [pair.cells for pair in pairs if pair and pair.cells]
    shapes = [{name: x.shape for name, x in cells.items()} for cells in known]
    if len(known) < len(base) or any(shape != shapes[0] for shape in shapes):
        return None
    return over_environments(known, next(pair.weights for pair in pairs if pair))


def _average(label: str, one: OverEnvironments | None) -> Difference:
    """The difference on average over such environments, which take the place of seeds."""
    return difference_of(label, AVERAGE, one.average, one.count) if one else Difference(label, AVERAGE)


def _cells(found: OverEnvironments | None, judged: Difference, axis: str) -> tuple[Cell, ...]:
    if found is None:
        return (MISSING,) * 5
    these, between = found.these, "" if np.isnan(found.between) else f"{100 * found.between:.1f}"
    return (
        percent_cell(these.mean, these.low, these.high),
        difference_cell(judged),
        percent_cell(judged.delta, *found.one),
        Cell(text=between),
        Cell(text=verdict_words(judged.verdict, judged.p_holm, judged.seeds, axis)),
    )


def _pair(samples: pd.DataFrame, key: str, base: str) -> Pair | None:
    """A row minus the baseline in one environment; None where one of them is not measured."""
    two = samples[samples["row"].isin((key, base))]
    return pair_rows(two, base)[0] if two["row"].nunique() == 2 else None


def _note(axis: str, family: int) -> str:
    return (
        f"All are the mean over {axis}. These: the 95% interval for other seeds and problems with the same values. On "
        f"average: over all such values of {axis}, as far as these are a fair sample of them. One more: where the "
        "difference on a single further one, measured like these on the same problems, lies in 95% of cases. SD "
        f"between: of the true differences. Verdict: p of the average, Holm's over {counted(family, 'comparison')}, "
        "measured or not."
    )
