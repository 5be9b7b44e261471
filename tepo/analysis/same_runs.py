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
    """Rows that are other rows."""

    same_as: Mapping[str, str]  # row key -> label of the row that it is, where that is declared and so
    notes: Sequence[str]  # on what was declared and is not so, and on what is so and was not declared


@dataclass(frozen=True)
class _Row:
    """A row at one model and setting."""

    key: str
    unit: Unit
    openings: Mapping[int, Opening]  # of its finished runs, by seed

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
        rows = []
        for key, row_units in group.items():
            finished = [unit for unit in row_units if facts.of(unit.id).finished]
            openings = {unit.seed: opening for unit in finished if (opening := _opening(facts.metrics(unit.id)))}
            rows.append(_Row(key, row_units[0], openings))
        by_label = {row.unit.row.label: row for row in rows}
        for label, other in declared.items():
            row, like = by_label[label], by_label[other]
            if alike := _alike(row, like):
                same[row.key] = like.unit.row_label
            elif alike is False:
                apart.setdefault((row.unit.row_label, like.unit.row_label), []).append(row.where)
        # but for the objective nothing may be set differently: a run of 18 steps is the beginning of one of 36, and
        # staleness 8 begins as staleness 4 does
        settings = {row.key: replace(row.unit.config, objective={}, seed=0) for row in rows}
        for one, two in combinations(rows, 2):
            roots = {declared.get(row.unit.row.label, row.unit.row.label) for row in (one, two)}
            alike = len(roots) == 2 and one.unit.id != two.unit.id and _alike(one, two)
            if alike and settings[one.key] == settings[two.key]:
                found.setdefault((one.unit.row_label, two.unit.row_label), []).append(one.where)
    parted: dict[tuple[str, str], list[str]] = {}  # a note for all rows that part from one at the same settings
    for (label, other), where in apart.items():
        parted.setdefault((other, _at(where)), []).append(label)
    notes = [
        f"Declared by `same_as:` to train as {other} does, but their runs part within {STEPS} steps{at}: "
        f"{'; '.join(names)}."
        for (other, at), names in parted.items()
    ]
    notes += [
        f"{one} and {two} begin alike in every seed{_at(where)}: "
        f"equal rewards for {STEPS} steps. Where one is the other, `same_as:` under `scales: {scale}:` says so."
        for (one, two), where in found.items()
    ]
    return SameRuns(same, notes)


def _opening(metrics: Sequence[Mapping[str, Any]]) -> Opening | None:
    """None for a run of fewer steps."""
    rows = metrics[:STEPS]
    names = ("critic/score/mean", "actor/entropy")
    if len(rows) < STEPS or any(name not in row for row in rows for name in names):
        return None
    return tuple(f"{row[names[0]]:.{_DIGITS}g}" for row in rows), tuple(float(row[names[1]]) for row in rows)


def _alike(one: _Row, two: _Row) -> bool | None:
    """Tell whether every seed that both have begins alike; None for fewer than two. Rewards alone would not do: at a
    staleness of 8 the first nine rollouts are the untrained policy's, whatever trains on them."""
    shared = one.openings.keys() & two.openings.keys()
    if len(shared) < _FEWEST:
        return None
    for seed in shared:
        (rewards, entropies), (others, other_entropies) = one.openings[seed], two.openings[seed]
        pairs = zip(entropies, other_entropies, strict=True)
        if rewards != others or not all(math.isclose(a, b, rel_tol=_ENTROPY) for a, b in pairs):
            return False
    return True


def _at(where: Sequence[str]) -> str:
    """The settings in words; empty where nothing varies."""
    return f" at {', '.join(where)}" if any(where) else ""
