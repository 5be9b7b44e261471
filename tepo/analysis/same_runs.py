"""Rows that train as another row does until rounding parts their runs: found by their metrics, and declared by
`same_as:` of a study. docs/evaluation.md gives the rule and what it finds among the records."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from tepo.common.text import setting_text
from tepo.store.facts import Facts
from tepo.studies.plan import Unit, row_key
from tepo.studies.study import Study

STEPS = 4  # of every seed: at 4e-4, where rounding grows fastest before a collapse, runs of one objective part after it
_DIGITS = 6  # of rewards; the records keep as many
_ENTROPY = 5e-5  # relative: replicas lie within 3.3e-5 over these steps, the nearest other objectives 1.2e-4 apart
_FEWEST = 2  # seeds

Opening = tuple[tuple[str, ...], tuple[float, ...]]  # rewards as printed, and entropies, of the first steps


@dataclass(frozen=True)
class SameRuns:
    """same_as: row key -> label of the row that it is, where that is declared and so. notes: on what was declared and
    is not so, and on what is so and was not declared."""

    same_as: Mapping[str, str]
    notes: Sequence[str]


@dataclass(frozen=True)
class _Row:
    """A row at one model and setting, with the openings of its finished runs by seed."""

    key: str
    unit: Unit
    openings: Mapping[int, Opening]

    @property
    def where(self) -> str:
        return setting_text(self.unit.row.setting.point)


def same_runs(study: Study, scale: str, units: Sequence[Unit], facts: Facts) -> SameRuns:
    """Compare the rows of each model and setting by the first steps of their runs."""
    declared = study.scale(scale).same_as
    groups: dict[tuple[str, tuple[str, ...]], dict[str, list[Unit]]] = {}
    for unit in units:
        if unit.row.objective is not None:
            group = groups.setdefault((unit.model, unit.row.setting.overrides), {})
            group.setdefault(row_key(unit), []).append(unit)
    same: dict[str, str] = {}
    apart: dict[tuple[str, str], list[str]] = {}
    found: dict[tuple[str, str], list[str]] = {}
    for group in groups.values():
        rows = [_read(key, row, facts) for key, row in group.items()]
        by_label = {row.unit.row.label: row for row in rows}
        for label, other in declared.items():
            row, like = by_label[label], by_label[other]
            if (alike := _alike(row, like)) is not None:
                if alike:
                    same[row.key] = like.unit.row_label
                else:
                    apart.setdefault((row.unit.row_label, like.unit.row_label), []).append(row.where)
        for one, two in combinations(rows, 2):
            roots = {declared.get(row.unit.row.label, row.unit.row.label) for row in (one, two)}
            if len(roots) == 2 and one.unit.id != two.unit.id and _alike(one, two) and _differ_in_objective(one, two):
                found.setdefault((one.unit.row_label, two.unit.row_label), []).append(one.where)
    return SameRuns(same, [*_apart_notes(apart), *_found_notes(found, scale)])


def _read(key: str, units: Sequence[Unit], facts: Facts) -> _Row:
    openings = {
        unit.seed: opening
        for unit in units
        if facts.of(unit.id).finished and (opening := _opening(facts.metrics(unit.id)))
    }
    return _Row(key, units[0], openings)


def _opening(metrics: Sequence[Mapping[str, Any]]) -> Opening | None:
    """None for a run of fewer steps."""
    rows = metrics[:STEPS]
    names = ("critic/score/mean", "actor/entropy")
    if len(rows) < STEPS or any(name not in row for row in rows for name in names):
        return None
    return tuple(f"{row[names[0]]:.{_DIGITS}g}" for row in rows), tuple(float(row[names[1]]) for row in rows)


def _alike(one: _Row, two: _Row) -> bool | None:
    """Tell whether every seed that both have begins alike; None for fewer than two."""
    shared = one.openings.keys() & two.openings.keys()
    if len(shared) < _FEWEST:
        return None
    return all(_begin_alike(one.openings[seed], two.openings[seed]) for seed in shared)


def _begin_alike(one: Opening, two: Opening) -> bool:
    """Rewards alone would not do: at a staleness of 8 the first nine rollouts are the untrained policy's, whatever
    trains on them."""
    entropies = zip(one[1], two[1], strict=True)
    return one[0] == two[0] and all(math.isclose(a, b, rel_tol=_ENTROPY) for a, b in entropies)


def _differ_in_objective(one: _Row, two: _Row) -> bool:
    """Tell whether nothing else is set differently: a run of 18 steps is the beginning of one of 36, and staleness 8
    begins as staleness 4 does."""
    first, second = (replace(row.unit.config, objective={}, seed=0) for row in (one, two))
    return first == second


def _apart_notes(apart: Mapping[tuple[str, str], Sequence[str]]) -> list[str]:
    """A note for all rows that part from the same one at the same settings."""
    labels: dict[tuple[str, str], list[str]] = {}
    for (label, other), where in apart.items():
        labels.setdefault((other, _at(where)), []).append(label)
    return [
        f"Declared by `same_as:` to train as {other} does, but their runs part within {STEPS} steps{at}: "
        f"{'; '.join(names)}."
        for (other, at), names in labels.items()
    ]


def _at(where: Sequence[str]) -> str:
    """The settings in words; empty where nothing varies."""
    return f" at {', '.join(where)}" if any(where) else ""


def _found_notes(found: Mapping[tuple[str, str], Sequence[str]], scale: str) -> list[str]:
    return [
        f"{one} and {two} begin alike in every seed{_at(where)}: "
        f"equal rewards for {STEPS} steps. Where one is the other, `same_as:` under `scales: {scale}:` says so."
        for (one, two), where in found.items()
    ]
