"""Rows of a sweep compared over an axis whose values are draws of a population (`drawn:`), such as bases."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from tepo.common.text import counted, setting_text
from tepo.evaluation.statistics.answer import NOTHING, Answer, Question, answers
from tepo.evaluation.statistics.over_environments import OverEnvironments, over_environments
from tepo.evaluation.statistics.samples import AVERAGE, pair_rows
from tepo.evaluation.statistics.verdict import FEWEST_SEEDS
from tepo.reporting.tables.table import (
    MISSING,
    VERDICT,
    Cell,
    Column,
    Kind,
    TableBlock,
    TableRow,
    difference_cell,
    percent_cell,
    verdict_words,
)
from tepo.studies.plan import Unit, row_key
from tepo.studies.study import Study
from tepo.studies.vary import shown_axes

_Keys = dict[str, dict[str, str]]  # label -> value of the drawn axis -> row key


def environment_blocks(
    study: Study, scale: str, units: Sequence[Unit], samples: pd.DataFrame
) -> tuple[TableBlock, ...]:
    """A block for each model and setting of the other axes: every row against the baseline, in the mean over the drawn
    axis. samples: as `read_samples` gives them. A row that lacks an environment has no figures. Verdicts are corrected
    over all rows of all blocks, measured or not."""
    axis, baseline = shown_axes(study.vary_at(scale))[study.scale(scale).drawn], study.baseline or ""
    groups: dict[tuple[str, str], _Keys] = {}
    first: dict[str, Unit] = {}
    models = {unit.model for unit in units}
    for unit in units:
        if unit.trains:
            point = dict(unit.row.setting.point)
            value = point.pop(axis)
            group = groups.setdefault((unit.model if len(models) > 1 else "", setting_text(point)), {})
            group.setdefault(unit.row.label, {})[value] = row_key(unit)
            first.setdefault(unit.row.label, unit)
    comparisons = {
        (where, label): _over(samples, keys, rows.get(baseline, {}))
        for where, rows in groups.items()
        for label, keys in rows.items()
        if label != baseline
    }
    questions = []  # environments take the place of seeds
    for (_, label), over in comparisons.items():
        measured = (over.average, over.by_environment) if over else (NOTHING, ())
        questions.append(Question(label, baseline, AVERAGE, *measured, fewest=FEWEST_SEEDS))
    judged = dict(zip(comparisons, answers(questions), strict=True))
    note = (
        f"All are the mean over {axis}. These: the 95% interval for other seeds and problems with the same values. On "
        f"average: over all such values of {axis}, as far as these are a fair sample of them. One more: where the "
        "difference on a single further one, measured like these on the same problems, lies in 95% of cases. SD "
        "between: of the true differences. Verdict: p of the average, Holm's over "
        f"{counted(len(comparisons), 'comparison')}, measured or not."
    )
    blocks = []
    for where, rows in groups.items():
        lines = [
            TableRow(label, label, _cells(comparisons[where, label], judged[where, label], axis),
                     first[label].row.objective or "", look=first[label].row.look)
            for label in rows if label != baseline
        ]  # fmt: skip
        columns = (
            Column("these", f"Δ, these {len(rows.get(baseline, {}))}", Kind.DELTA),
            Column("delta", "Δ, on average", Kind.DELTA),
            Column("one", "Δ, one more", Kind.DELTA),
            Column("between", "SD between, points", Kind.TEXT),
            Column(VERDICT, "Verdict, on average", Kind.TEXT),
        )
        part = ", ".join(filter(None, where))
        title = ", ".join(filter(None, (f"Against {baseline} in the mean over {axis}", part)))
        blocks.append(TableBlock(title, columns, tuple(lines), notes=(note,), part=part, baseline=baseline, drawn=axis))
    return tuple(blocks)


def _over(samples: pd.DataFrame, keys: Mapping[str, str], base: Mapping[str, str]) -> OverEnvironments | None:
    """A row beside the baseline over all environments; None where it lacks one."""
    pairs = []
    for value, key in keys.items():
        two = samples[samples["row"].isin((key, base.get(value, "")))]
        if two["row"].nunique() == 2:  # both are measured
            pairs += pair_rows(two, base[value])
    environments = [pair.cells for pair in pairs if pair.cells]
    shapes = [{name: x.shape for name, x in cells.items()} for cells in environments]
    if len(environments) < len(base) or any(shape != shapes[0] for shape in shapes):
        return None
    return over_environments(environments, pairs[0].weights)


def _cells(over: OverEnvironments | None, judged: Answer, axis: str) -> tuple[Cell, ...]:
    if over is None:
        return (MISSING,) * 5
    these, between = over.these, "" if np.isnan(over.between) else f"{100 * over.between:.1f}"
    return (
        percent_cell(these.mean, these.low, these.high),
        difference_cell(judged),
        percent_cell(judged.delta, *over.one),
        Cell(text=between),
        Cell(text=verdict_words(judged, axis)),
    )
