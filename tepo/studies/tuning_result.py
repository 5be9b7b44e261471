"""A study that tunes, in phases: every row is trained at every setting and validated, then trained and measured at the
setting that validation chose for it. A shortlist is a phase between: all draws have the first tuning seeds, and the
best of them the others.

The choice looks at validation alone, and at settings that have all tuning seeds. It is known when all of those are
there: nothing but the shortlist prunes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

from tepo.common.grouping import grouped
from tepo.common.text import setting_text
from tepo.studies.plan import Trial, Unit, reporting_seeds, scale_of, unit_of
from tepo.studies.study import Study, StudyRow
from tepo.studies.tune import Tune
from tepo.studies.vary import Setting


@dataclass(frozen=True)
class TunedRow:
    """A row of a model. tried: the units that choose, setting after setting, one a tuning seed as far as planned.
    share: what a unit's last weights answer right of its validation problems, None where that is not known."""

    tried: tuple[tuple[Unit, ...], ...]
    tune: Tune
    share: Callable[[Unit], float | None] = Unit.validation

    @property
    def first(self) -> Unit:
        return self.tried[0][0]

    @property
    def draws(self) -> range:
        """The settings that were drawn, which the default is not."""
        return range(self.tune.default, len(self.tried))

    @cached_property
    def first_scores(self) -> list[float | None]:
        """Mean share of each setting over the tuning seeds that all of them have; None where one is missing."""
        short = self.tune.shortlist
        return [self._mean(units[: short.after if short else None]) for units in self.tried]

    @property
    def known(self) -> list[float]:
        """The first scores of all draws, none while one is missing."""
        scores = [score for index in self.draws if (score := self.first_scores[index]) is not None]
        return scores if len(scores) == len(self.draws) else []

    @property
    def shortlist(self) -> list[int] | None:
        """The settings that are trained with all tuning seeds: the best draws by their first scores, of equal ones the
        first, and the default. None while a draw is missing."""
        if self.tune.shortlist is None:
            return list(range(len(self.tried)))
        if not self.known:
            return None
        best = sorted(self.draws, key=lambda index: -self.known[index - self.draws.start])
        return sorted([*range(self.draws.start), *best[: self.tune.shortlist.keep]])

    @cached_property
    def scores(self) -> dict[int, float]:
        """Mean share over all tuning seeds of each setting that can be chosen; none while one of them is missing."""
        scores: dict[int, float] = {}
        for index in self.shortlist or ():
            mean = self._mean(self.tried[index])
            if mean is None or len(self.tried[index]) < len(self.tune.seeds):
                return {}
            scores[index] = mean
        return scores

    def _mean(self, units: Sequence[Unit]) -> float | None:
        shares = [share for unit in units if (share := self.share(unit)) is not None]
        return fmean(shares) if len(shares) == len(units) else None

    @property
    def chosen(self) -> int | None:
        """The setting with the best score, of several such the first; None while one is missing."""
        return max(self.scores, key=self.scores.__getitem__) if self.scores else None

    def shown(self, index: int) -> str:
        """A setting in words."""
        return setting_text(self.tried[index][0].row.setting.point)

    def to_shortlist(self, index: int) -> list[Unit]:
        """The units that a setting lacks to have all tuning seeds."""
        first, known_seeds = self.tried[index][0], {unit.seed for unit in self.tried[index]}
        return under_seeds(first, first.row, [seed for seed in self.tune.seeds if seed not in known_seeds], Trial)

    def reported(self, index: int, seeds: Sequence[int]) -> list[Unit]:
        """The units that would report a setting. Their label is the row's: the setting is part of what the row is."""
        first = self.tried[index][0]
        return under_seeds(first, replace(first.row, setting=Setting({}, first.row.setting.overrides)), seeds)


def under_seeds(unit: Unit, row: StudyRow, seeds: Sequence[int], kind: type[Unit] = Unit) -> list[Unit]:
    """The configuration of a unit under other seeds."""
    words, store = unit.overrides[:-1], unit.store
    return [unit_of(row, unit.model, words, seed, store, unit.recorded_base, kind) for seed in seeds]


def tuned_rows(
    units: Sequence[Unit], tune: Tune, share: Callable[[Unit], float | None] = Unit.validation
) -> list[TunedRow]:
    """The rows of a plan that are tuned, from its units that choose. share: as of `TunedRow`."""
    rows = grouped(((unit.model, unit.row.label), unit) for unit in units if unit.tuning).values()
    tried = (grouped((unit.row.name, unit) for unit in row).values() for row in rows)
    return [TunedRow(tuple(map(tuple, settings)), tune, share) for settings in tried]


def with_chosen(
    units: Sequence[Unit], tune: Tune, seeds: Sequence[int], share: Callable[[Unit], float | None] = Unit.validation
) -> list[Unit]:
    """The units of a plan, those that choose among each row's shortlist, and those that report each row whose setting
    is chosen. share: as of `TunedRow`."""
    choosing, reporting = list[Unit](), list[Unit]()
    for row in tuned_rows(units, tune, share):
        listed = row.shortlist or ()
        added = [row.to_shortlist(index) if index in listed else [] for index in range(len(row.tried))]
        whole = replace(row, tried=tuple((*units, *more) for units, more in zip(row.tried, added, strict=True)))
        choosing += [unit for more in added for unit in more]
        reporting += whole.reported(whole.chosen, seeds) if whole.chosen is not None else []
    return [*units, *choosing, *reporting]


def undecided(
    planned: Sequence[tuple[Study, list[Unit]]], seeds: Sequence[int] | None
) -> tuple[list[Unit], list[Unit]]:
    """Stand-ins for units whose settings are not known yet, as many as there will be: of each row without a shortlist
    the first draws with the other tuning seeds, and of each row without a choice its first setting, reported."""
    shortlists, choices = list[Unit](), list[Unit]()
    for study, units in planned:
        if tune := study.tune_at(scale := scale_of(units)):
            for row in tuned_rows(units, tune):
                if tune.shortlist and row.shortlist is None:
                    first = row.draws[: tune.shortlist.keep]
                    shortlists += [unit for index in first for unit in row.to_shortlist(index)]
                if row.chosen is None:
                    choices += row.reported(0, reporting_seeds(study, scale, seeds))
    return shortlists, choices
