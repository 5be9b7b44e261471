"""`tune:` of a study: each row is tried at the same settings and reported at the best of its own (docs/studies.md)."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from tepo.common.randomness import derive
from tepo.common.schema import REQUIRED, Location, option
from tepo.studies.vary import Setting, Value, Vary, Words, shown_axes, value_text, values_of, varied_keys

Kind = Literal["log", "uniform"]
DEFAULT = Setting({"default": ""})  # sets nothing: the row as it is written
WIDE = 0.25  # share of a range that no search should leave out: four evenly spaced draws leave no larger one
_BITS = 30  # of a Sobol point
_DIGITS = 3  # significant digits of a number: short enough to read and to type


@dataclass(frozen=True)
class Range:
    """Numbers between two ends; log: uniform in their logarithm."""

    kind: Kind
    low: float
    high: float

    def at(self, share: float) -> float:
        """The number below which a share in [0, 1) of the range lies, rounded to three significant digits."""
        if self.kind == "log":
            exact = self.low * (self.high / self.low) ** share
        else:
            exact = self.low + (self.high - self.low) * share
        return min(max(float(f"{exact:.{_DIGITS}g}"), self.low), self.high)

    def share(self, number: float) -> float:
        """The share of the range that lies below a number."""
        if self.kind == "log":
            return math.log(number / self.low) / math.log(self.high / self.low)
        return (number - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Shortlist:
    """A round of successive halving (Jamieson and Talwalkar 2016): all draws have the first seeds, the best the
    others."""

    after: int = option(REQUIRED, "number of the first tuning seeds, with which every draw is trained", low=1)
    keep: int = option(REQUIRED, "number of draws of each row that are trained with the other tuning seeds too", low=1)


@dataclass(frozen=True)
class Tune:
    """Settings by which each row of a study is tuned."""

    draws: int = option(REQUIRED, "settings tried, the same for every row", low=1)
    seeds: tuple[int, ...] = option(REQUIRED, "of the runs that choose; the study reports none of them", low=0)
    space: Vary = option(REQUIRED, "each axis with its range or its values")
    method: Literal["sobol", "random"] = option("sobol", "settings that fill the space evenly, or independent ones")
    default: bool = option(False, "the row as it is written is tried beside the draws")
    shortlist: Shortlist | None = option(None, "which draws are trained with all tuning seeds; None: all")

    @property
    def settings(self) -> list[Setting]:
        """The default, where it is tried, and the draws, in order. A draw depends on its number and its axis alone, and
        with `sobol` on the axis' place: more draws, and axes behind the others, keep what is there."""
        settings = [DEFAULT] if self.default else []
        for shares in self._shares():
            values = [_value(axis, self.space[axis], share) for axis, share in zip(self.space, shares, strict=True)]
            settings.append(Setting.of(shown_axes(self.space).values(), values))
        return settings

    def _shares(self) -> list[list[float]]:
        """The share of each axis in [0, 1) at which each draw lies, by the words of the file alone."""
        words = {axis: _words(axis, values) for axis, values in self.space.items()}
        if self.method == "random":
            return [
                [derive(0, "tune", *named, number) % 2**53 / 2**53 for named in words.items()]
                for number in range(self.draws)
            ]
        from scipy.stats import qmc  # half a second, which only a study that tunes takes

        even = qmc.Sobol(len(words), scramble=False, bits=_BITS).random_base2((self.draws - 1).bit_length())
        return [
            [
                _scrambled(int(share * 2**_BITS), " ".join(named))
                for share, named in zip(row, words.items(), strict=True)
            ]
            for row in even[: self.draws].tolist()
        ]

    def seeds_of(self, setting: Setting) -> tuple[int, ...]:
        """The tuning seeds with which a setting is trained from the start: the default with all."""
        if self.shortlist is None or setting == DEFAULT:
            return self.seeds
        return self.seeds[: self.shortlist.after]

    @property
    def gap_lines(self) -> list[str]:
        """A sentence on the largest part of each range that the search leaves out, between two neighbouring draws or a
        draw and an end, with a warning where it is wide."""
        lines = []
        for axis, name in shown_axes(self.space).items():
            if interval := _range(self.space[axis]):
                points = sorted(float(setting.point[name]) for setting in self.settings if setting != DEFAULT)
                gaps = [
                    (interval.share(high) - interval.share(low), low, high)
                    for low, high in pairwise([interval.low, *points, interval.high])
                ]
                share, *numbers = max(gaps, key=lambda gap: gap[0])
                ends = {interval.low: " (the lower end)", interval.high: " (the upper end)"}
                low, high = (value_text(number) + ends.get(number, "") for number in numbers)
                factor = f", a factor of {numbers[1] / numbers[0]:.2f}" if interval.kind == "log" else ""
                wide = " More than a quarter of the range was not searched: the best setting may lie in it."
                text = f"Largest gap of the search: {name} from {low} to {high}{factor}, {share:.0%} of the range."
                lines.append(text + wide * (share > WIDE))
        return lines

    @property
    def first_range(self) -> str | None:
        """The first axis whose values are drawn from a range."""
        return next((axis for axis, values in self.space.items() if _range(values)), None)

    @property
    def keys(self) -> set[str]:
        """The configuration keys that the draws set."""
        return varied_keys(self.ends)

    @property
    def ends(self) -> Vary:
        """The space with the low end of each range for it: values that can be checked as those of `vary:` are."""
        return {
            axis: (interval.low,) if (interval := _range(values)) else values for axis, values in self.space.items()
        }


def check_tune(tune: Tune, at: Location) -> None:
    """Raises UserError for a range that is none, and for settings that cannot be chosen among. The rest is checked as
    in `vary:`, by `Tune.ends`."""
    here = at.at("space")
    if not tune.space:
        raise here.error(f"{here.key} names nothing to tune", fix="train.learning_rate: {log: [3e-5, 1e-3]}")
    for axis, values in tune.space.items():
        if not isinstance(values, dict) or not set(values) & {"log", "uniform"}:
            continue
        place, example = here.at(axis), f"{axis}: {{log: [3e-5, 1e-3]}}"
        interval = _range(values)
        if interval is None:
            raise place.error(f"{place.key} is a range, which has one kind and two numbers", fix=example)
        if not interval.low < interval.high:
            raise place.error(f"{place.key} goes from {interval.low:g} to {interval.high:g}", fix="the lower end first")
        if interval.kind == "log" and interval.low <= 0:
            fix = "ends above 0, or uniform in place of log"
            raise place.error(f"{place.key}: {interval.low:g} has no logarithm", fix=fix)
    if (short := tune.shortlist) is None:
        return
    place = at.at("shortlist")
    if short.after >= len(tune.seeds):
        what = f"{place.key}.after is {short.after} of {len(tune.seeds)} tuning seeds, which leaves none"
        raise place.error(what, fix="more `seeds:`, or leave `shortlist:` out")
    if short.keep >= tune.draws:
        what = f"{place.key}.keep is {short.keep} of {tune.draws} draws, which leaves none out"
        raise place.error(what, fix="a smaller one, or leave `shortlist:` out")


def _range(values: tuple[Value, ...] | dict[str, Words]) -> Range | None:
    """The range that an axis is, if it is one."""
    if not isinstance(values, dict) or len(values) != 1:
        return None
    ((kind, ends),) = values.items()
    try:
        low, high = map(float, ends)
    except ValueError:
        return None
    if kind not in ("log", "uniform") or not (math.isfinite(low) and math.isfinite(high)):
        return None
    return Range("log" if kind == "log" else "uniform", low, high)


def _words(axis: str, values: tuple[Value, ...] | dict[str, Words]) -> str:
    """Words of an axis, the same however its numbers are written."""
    interval = _range(values)
    return f"{interval.kind} {interval.low!r} {interval.high!r}" if interval else " ".join(values_of(axis, values))


def _value(axis: str, values: tuple[Value, ...] | dict[str, Words], share: float) -> tuple[str, Words]:
    """The value of an axis at a share of it as shown, and the overrides that it means."""
    if interval := _range(values):
        text = value_text(interval.at(share))
        return text, (f"{axis}={text}",)
    choices = list(values_of(axis, values).items())
    return choices[int(len(choices) * share)]


def _scrambled(coordinate: int, words: str) -> float:
    """A coordinate of Sobol's sequence, in 2^-_BITS, with each of its bits flipped or not by a hash of the words and of
    the bits above it (Owen 1995), in [0, 1). A hash and not scipy's random numbers: a point is the same on every
    machine and under every version of a library."""
    flipped = 0
    for bit in range(_BITS):
        above = coordinate >> (_BITS - bit)
        flipped = flipped << 1 | (coordinate >> (_BITS - 1 - bit) ^ derive(0, "scramble", words, bit, above)) & 1
    return flipped / 2**_BITS
