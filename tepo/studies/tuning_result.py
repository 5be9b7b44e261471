"""A study that tunes, in two phases: every row is trained at every draw and validated, then each row is trained and
measured at the draw that validation chose for it.

The choice looks at validation alone. It is known when all draws of a row are there: none is pruned.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

from tepo.studies.plan import Unit, reporting_seeds, unit_of
from tepo.studies.study import Study
from tepo.studies.tune import Tune
from tepo.studies.vary import Setting


@dataclass(frozen=True)
class TunedRow:
    """A row of a model. draws: its units, draw after draw, one a tuning seed."""

    draws: tuple[tuple[Unit, ...], ...]

    @property
    def first(self) -> Unit:
        return self.draws[0][0]

    @cached_property
    def scores(self) -> list[float | None]:
        """Mean share of each draw over the tuning seeds; None where one of them is missing."""
        shares = [[unit.validation() for unit in draw] for draw in self.draws]
        return [None if None in one else fmean(share for share in one if share is not None) for one in shares]

    @property
    def known(self) -> list[float]:
        """The scores of all draws, none while one is missing."""
        there = [score for score in self.scores if score is not None]
        return there if len(there) == len(self.draws) else []

    @property
    def chosen(self) -> int | None:
        """The draw with the best score, of several such the first; None while one is missing."""
        return self.known.index(max(self.known)) if self.known else None

    @property
    def setting(self) -> Setting | None:
        """The setting that was chosen."""
        return None if self.chosen is None else self.draws[self.chosen][0].row.setting

    def reported(self, draw: int, seeds: Sequence[int]) -> list[Unit]:
        """The units that would report a draw. Their label is the row's: the setting is part of what the row is."""
        one = self.draws[draw][0]
        row = replace(one.row, setting=Setting({}, one.row.setting.overrides))
        return [unit_of(row, one.model, one.overrides[:-1], seed, one.folder.parent) for seed in seeds]


def tuned_rows(units: Sequence[Unit], tune: Tune) -> list[TunedRow]:
    """The rows of a plan that are tuned, from its units that choose."""
    groups: dict[tuple[str, str], list[Unit]] = {}
    for unit in units:
        if unit.tuning:
            groups.setdefault((unit.model, unit.row.label), []).append(unit)
    size = len(tune.seeds)
    return [
        TunedRow(tuple(tuple(group[start : start + size]) for start in range(0, len(group), size)))
        for group in groups.values()
    ]


def with_chosen(units: Sequence[Unit], tune: Tune, seeds: Sequence[int]) -> list[Unit]:
    """The units of a plan, and those that report each row whose setting is chosen."""
    rows = tuned_rows(units, tune)
    return [*units, *(unit for row in rows if row.chosen is not None for unit in row.reported(row.chosen, seeds))]


def undecided_rows(
    planned: Sequence[tuple[Study, list[Unit]]], scale: str, seeds: Sequence[int] | None
) -> list[list[list[Unit]]]:
    """For each row whose setting is not chosen yet, the units that would report each of its draws."""
    return [
        [row.reported(draw, reporting_seeds(study, scale, seeds)) for draw in range(len(row.draws))]
        for study, units in planned
        if (tune := study.tune_at(scale))
        for row in tuned_rows(units, tune)
        if row.chosen is None
    ]
