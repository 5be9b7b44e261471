"""Whatever a study says is an answer to one kind of question: by how much does A lie above B in a measure, over a
sample of seeds or of environments, and does that lie in a region? Tables, drawn axes, claims, power and charts are made
from answers. A verdict on a row is that on a claim whose region is all but 0 (`DIFFERS`)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tepo.evaluation.statistics.intervals import UNKNOWN, Estimate
from tepo.evaluation.statistics.region import DIFFERS, Region
from tepo.evaluation.statistics.verdict import LEVEL, DeltaVerdict, holm

NOTHING = Estimate(math.nan, math.nan, math.nan, math.nan, UNKNOWN)


@dataclass(frozen=True)
class Question:
    """Row A beside row B in a benchmark, an average or a measure of training."""

    a: str
    b: str  # empty: A by itself
    measure: str
    estimate: Estimate = NOTHING  # of A - B, in shares, or in hundreds of the measure's unit
    sample: tuple[float, ...] = ()  # the difference on each seed, or on each environment; NaN where it has none
    region: Region = DIFFERS
    fewest: int = 0  # of the sample, below which no verdict is given


@dataclass(frozen=True)
class Answer:
    """A question with what the data say. Both p are corrected over the family, and NaN where nothing could be
    tested."""

    question: Question
    p_outside: float = math.nan  # of the hypothesis that the truth is not in the region
    p_inside: float = math.nan  # that it is
    tested: bool = True  # False in a fixed order behind an answer that does not hold

    @property
    def delta(self) -> float:
        """A - B, in shares; NaN where they share no seeds or problems."""
        return self.question.estimate.mean

    @property
    def verdict(self) -> DeltaVerdict:
        """A corrected p is at least the plain one, so that never both are below 5%."""
        if self.few:
            return DeltaVerdict.NO_VERDICT
        if math.isnan(self.p_outside):
            return DeltaVerdict.NOT_COMPARABLE
        if not self.tested:
            return DeltaVerdict.NOT_TESTED
        rows, holds = self.question.region == DIFFERS, self.p_outside < 1 - LEVEL
        if rows and holds:
            return DeltaVerdict.BETTER if self.delta > 0 else DeltaVerdict.WORSE
        if rows:
            return DeltaVerdict.NOT_DECIDED
        if holds:
            return DeltaVerdict.HOLDS
        return DeltaVerdict.REFUTED if self.p_inside < 1 - LEVEL else DeltaVerdict.UNDECIDED

    @property
    def few(self) -> bool:
        """Tell whether the sample is too small for a verdict: what others would give is not known."""
        return len(self.question.sample) < self.question.fewest and not math.isnan(self.question.estimate.p)

    @property
    def decides(self) -> bool:
        """Tell whether anything was tested: only then its p says something."""
        return self.tested and not math.isnan(self.p_outside)

    @property
    def p(self) -> float:
        """The p of what was rejected; where nothing was, the smaller of the two."""
        return min(self.p_outside, self.p_inside)

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the interval of this question alone: 90% where the region has one end, so that by itself it is
        decided exactly where the interval leaves out the end, else 95%."""
        if not self.question.region.one_sided:
            return self.question.estimate.low, self.question.estimate.high
        half = float(self.question.estimate.tails.quantile(LEVEL)) * self.question.estimate.error
        return self.delta - half, self.delta + half


def answers(questions: Sequence[Question], family: int | None = None, *, in_order: bool = False) -> list[Answer]:
    """The answers to questions of one family. What cannot be tested counts in it: a verdict must not change when it
    can be.

    Holm's procedure is over the n hypotheses "it is outside", and apart from them over the n hypotheses "it is inside":
    the chance of any wrong "holds" is at most 5%, and so is that of any wrong "refuted". One procedure over both would
    multiply every p by n: of each pair one is always true, so no rejection makes the rest easier.

    family: how many questions it has, by default these. in_order: each is tested at 5%, and none behind the first that
    does not hold."""
    unknown = math.nan, math.nan
    pairs = [
        unknown if len(question.sample) < question.fewest else question.region.p_values(question.estimate)
        for question in questions
    ]
    p = np.reshape(pairs, (-1, 2))
    if not in_order:
        size = len(questions) if family is None else family
        p = np.transpose([holm(column, size) for column in p.T]).reshape(p.shape)
    judged = [
        Answer(question, float(outside), float(inside))
        for question, (outside, inside) in zip(questions, p, strict=True)
    ]
    if not in_order:
        return judged
    holds = [answer.verdict is DeltaVerdict.HOLDS for answer in judged]
    reached = holds.index(False) if False in holds else len(holds)
    return [replace(answer, tested=place <= reached) for place, answer in enumerate(judged)]
