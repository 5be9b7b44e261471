"""`tune:` of a study: each row is tried at the same settings, drawn at random, and reported at the best of its own.

tune:
  draws: 8
  seeds: [50]                                           # of the runs that choose; the study reports none of them
  space:
    train.learning_rate: {log: [3e-5, 1e-3]}            # a number between two, uniform in its logarithm
    train.grad_clip: {uniform: [0.5, 2]}                # or uniform
    train.epochs: [1, 2, 4]                             # or one of some values
    clip: {wide: [objective.surrogate.high=0.28], tight: [objective.surrogate.high=0.02]}   # or of some settings
"""

import math
from dataclasses import dataclass
from typing import Literal

from tepo.common.randomness import derive
from tepo.common.schema import REQUIRED, Location, option
from tepo.studies.vary import Setting, Value, Vary, Words, shown_axes, value_text, values_of, varied_keys

Kind = Literal["log", "uniform"]
_DIGITS = 3  # significant digits of a number: short enough to read and to type


@dataclass(frozen=True)
class Range:
    """Numbers between two ends; log: uniform in their logarithm."""

    kind: Kind
    low: float
    high: float

    def at(self, share: float) -> float:
        """The number below which a share in [0, 1) of the draws lies, rounded to three significant digits."""
        if self.kind == "log":
            exact = self.low * (self.high / self.low) ** share
        else:
            exact = self.low + (self.high - self.low) * share
        return min(max(float(f"{exact:.{_DIGITS}g}"), self.low), self.high)


@dataclass(frozen=True)
class Tune:
    """Settings by which each row of a study is tuned."""

    draws: int = option(REQUIRED, "settings drawn at random, the same for every row", low=1)
    seeds: tuple[int, ...] = option(REQUIRED, "of the runs that choose; the study reports none of them", low=0)
    space: Vary = option(REQUIRED, "each axis with its range or its values")

    @property
    def settings(self) -> list[Setting]:
        """The draws, in order. A draw depends on its number and its axis alone: more draws or axes keep the others."""
        axes = shown_axes(self.space)
        settings = []
        for number in range(self.draws):
            drawn = {axes[axis]: _drawn(axis, values, number) for axis, values in self.space.items()}
            point = {name: text for name, (text, _) in drawn.items()}
            settings.append(Setting(point, tuple(word for _, words in drawn.values() for word in words)))
        return settings

    @property
    def keys(self) -> set[str]:
        """The configuration keys that the draws set."""
        return varied_keys(self.ends)

    @property
    def ends(self) -> Vary:
        """The space with the low end of each range for it: values that can be checked as those of `vary:` are."""
        return {axis: (one.low,) if (one := _range(values)) else values for axis, values in self.space.items()}


def check_ranges(tune: Tune, at: Location) -> None:
    """Raises UserError for a range that is none. The rest is checked as in `vary:`, by `Tune.ends`."""
    if not tune.space:
        raise at.error(f"{at.key} names nothing to tune", fix="train.learning_rate: {log: [3e-5, 1e-3]}")
    for axis, values in tune.space.items():
        if not isinstance(values, dict) or not set(values) & {"log", "uniform"}:
            continue
        here, example = at.at(axis), f"{axis}: {{log: [3e-5, 1e-3]}}"
        one = _range(values)
        if one is None:
            raise here.error(f"{here.key} is a range, which has one kind and two numbers", fix=example)
        if not one.low < one.high:
            raise here.error(f"{here.key} goes from {one.low:g} to {one.high:g}", fix="the lower end first")
        if one.kind == "log" and one.low <= 0:
            raise here.error(
                f"{here.key}: {one.low:g} has no logarithm", fix="ends above 0, or uniform in place of log"
            )


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


def _drawn(axis: str, values: tuple[Value, ...] | dict[str, Words], number: int) -> tuple[str, Words]:
    """The value of an axis in one draw as shown, and the overrides that it means."""
    one = _range(values)
    if one is not None:
        text = value_text(one.at(_share(axis, f"{one.kind} {one.low!r} {one.high!r}", number)))
        return text, (f"{axis}={text}",)
    choices = list(values_of(axis, values).items())
    return choices[int(len(choices) * _share(axis, " ".join(text for text, _ in choices), number))]


def _share(axis: str, values: str, number: int) -> float:
    """In [0, 1), by the words of the file alone."""
    return derive(0, "tune", axis, values, number) % 2**53 / 2**53
