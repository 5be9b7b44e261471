"""Better, worse, equivalent or undecided: differences with a margin, decided as one family.

Two hypotheses stand behind each difference: that it is 0, and that it is at least the margin in size. The first has the
two-sided p of the comparison. The second has that of two one-sided tests (Schuirmann 1987), doubled: each is made at
2.5%, so that "equivalent" goes with the 95% interval as "better" does. docs/evaluation.md gives the reasons."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tepo.evaluation.statistics.comparison import Difference
from tepo.evaluation.statistics.comparison_verdict import Verdict
from tepo.evaluation.statistics.intervals import LEVEL


@dataclass(frozen=True)
class Decision:
    """A difference judged at its margin (in shares). p_difference and p_equivalence: corrected over the family; NaN
    where nothing could be tested."""

    difference: Difference
    margin: float
    p_difference: float
    p_equivalence: float

    @property
    def verdict(self) -> Verdict:
        """Equivalent comes first: where a difference is both beyond noise and surely smaller than what was said to
        matter, it does not matter. It is never said of an interval that reaches the margin."""
        one = self.difference
        if math.isnan(self.p_difference):
            return Verdict.NOT_COMPARABLE
        if self.p_equivalence < 1 - LEVEL and -self.margin < one.low and one.high < self.margin:
            return Verdict.EQUIVALENT
        if self.p_difference < 1 - LEVEL:
            return Verdict.BETTER if one.delta > 0 else Verdict.WORSE
        return Verdict.UNDECIDED

    @property
    def p(self) -> float:
        """The p behind the verdict; where it is undecided, the smaller of the two."""
        match self.verdict:
            case Verdict.EQUIVALENT:
                return self.p_equivalence
            case Verdict.BETTER | Verdict.WORSE:
                return self.p_difference
        return min(self.p_difference, self.p_equivalence)


def decide(differences: Sequence[Difference | None], margins: Sequence[float]) -> list[Decision | None]:
    """Each difference at its margin, corrected over all of them. None: not measured yet, which counts in the family."""
    pairs = zip(differences, margins, strict=True)
    p = [[math.nan, math.nan] if one is None else [one.p, equivalence_p(one, margin)] for one, margin in pairs]
    return [
        None if one is None else Decision(one, margin, *map(float, pair))
        for one, margin, pair in zip(differences, margins, correct_pairs(np.reshape(p, (-1, 2))), strict=True)
    ]


def equivalence_p(one: Difference, margin: float) -> float:
    """Twice the larger p of the two one-sided tests of |difference| >= margin, at most 1."""
    inside = margin - abs(one.delta)
    if one.error == 0:
        return 0.0 if inside > 0 else 1.0
    return float(min(2 * one.tails.below(-inside / one.error), 1.0))


def correct_pairs(p: np.ndarray) -> np.ndarray:
    """Holm's step-down p-values [n, 2] of n pairs of which at most one hypothesis each is true (Shaffer 1986). A
    difference cannot be 0 and at least the margin at once. So a p is multiplied by the number of pairs that still have
    a hypothesis to reject, where plain Holm would count the hypotheses. NaN counts as a p of 1 and stays NaN."""
    flat = np.where(np.isnan(p), 1.0, p).ravel()
    left = np.full(len(p), 2)
    adjusted, largest = np.empty(len(flat)), 0.0
    for index in np.argsort(flat, kind="stable"):
        largest = max(largest, flat[index] * np.count_nonzero(left))
        adjusted[index] = min(largest, 1.0)
        left[index // 2] -= 1
    return np.where(np.isnan(p), np.nan, adjusted.reshape(p.shape))
