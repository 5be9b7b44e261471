"""Rows that train as another row does until rounding parts their runs: declared by `same_as:` of a study, and checked
by their metrics. docs/studies.md gives the rule."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tepo.common.text import setting_text
from tepo.store.facts import Facts
from tepo.studies.plan import Unit, row_key
from tepo.studies.study import Study

STEPS = 4  # of every seed: at 4e-4, where rounding grows fastest before a collapse, runs of one objective part after it
_DIGITS = 6  # of rewards; the records keep as many
_ENTROPY = 5e-5  # relative: replicas lie within 3.3e-5 over these steps, the nearest other objectives 1.2e-4 apart
_FEWEST = 2  # seeds

Opening = tuple[tuple[str, ...], tuple[float, ...]]  # rewards as printed, and entropies, of the first steps


def same_runs(study: Study, scale: str, units: Sequence[Unit], facts: Facts) -> tuple[Mapping[str, str], Sequence[str]]:
    """Row key -> label of the row that it is, where that is declared and so, and notes on what was declared and is not
    so: rows of each model and setting are compared by the first steps of their runs."""
    same: dict[str, str] = {}
    apart: dict[tuple[str, str], list[str]] = {}
    openings: dict[tuple[str, tuple[str, ...], str], dict[int, Opening]] = {}  # of finished runs, by seed
    first: dict[tuple[str, tuple[str, ...], str], Unit] = {}
    declared = study.scale(scale).same_as
    for unit in units if declared else ():
        row = unit.model, unit.row.setting.overrides, unit.row.label
        first.setdefault(row, unit)
        if facts.of(unit.id).finished and (opening := _opening(facts.metrics(unit.id))):
            openings.setdefault(row, {})[unit.seed] = opening
    for (model, overrides, label), unit in first.items():
        if (other := declared.get(label)) is None:
            continue
        like = model, overrides, other
        alike = _alike(openings.get((model, overrides, label), {}), openings.get(like, {}))
        if alike:
            same[row_key(unit)] = first[like].row_label
        elif alike is False:
            where = setting_text(unit.row.setting.point)
            apart.setdefault((unit.row_label, first[like].row_label), []).append(where)
    parted: dict[tuple[str, str], list[str]] = {}  # a note for all rows that part from one at the same settings
    for (label, other), settings in apart.items():
        parted.setdefault((other, f" at {', '.join(settings)}" if any(settings) else ""), []).append(label)
    notes = [
        f"Declared by `same_as:` to train as {other} does, but their runs part within {STEPS} steps{at}: "
        f"{'; '.join(names)}."
        for (other, at), names in parted.items()
    ]
    return same, notes


def _opening(metrics: Sequence[Mapping[str, Any]]) -> Opening | None:
    """None for a run of fewer steps."""
    rows = metrics[:STEPS]
    names = ("critic/score/mean", "actor/entropy")
    if len(rows) < STEPS or any(name not in row for row in rows for name in names):
        return None
    return tuple(f"{row[names[0]]:.{_DIGITS}g}" for row in rows), tuple(float(row[names[1]]) for row in rows)


def _alike(openings: Mapping[int, Opening], other: Mapping[int, Opening]) -> bool | None:
    """Tell whether every seed that both have begins alike; None for fewer than two. Rewards alone would not do: at a
    staleness of 8 the first nine rollouts are the untrained policy's, whatever trains on them."""
    shared = openings.keys() & other.keys()
    if len(shared) < _FEWEST:
        return None
    pairs = [(openings[seed], other[seed]) for seed in shared]
    return all(a[0] == b[0] and np.allclose(a[1], b[1], rtol=_ENTROPY, atol=0) for a, b in pairs)
