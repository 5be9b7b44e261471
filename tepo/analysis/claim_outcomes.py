"""Outcomes of registered claims, from the facts of their runs, by the rule of regions
(`tepo.evaluation.statistics.region`)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tepo.analysis.tables import read_samples, row_key
from tepo.common.grouping import grouped
from tepo.evaluation.statistics.answer import Answer, Question, answers
from tepo.evaluation.statistics.over_environments import over_environments
from tepo.evaluation.statistics.samples import AVERAGE, pair_rows
from tepo.evaluation.statistics.training_measures import (
    CLIPPED,
    REALISED_KL,
    Rows,
    censored,
    entropy_gap,
    estimate_gaps,
    late_mean,
    log_mean,
    steps_to,
)
from tepo.evaluation.statistics.verdict import DeltaVerdict
from tepo.store.evaluation_result import AVERAGE as VALIDATED
from tepo.store.facts import BEST, Facts
from tepo.studies.claims import BASE, Claim, Claims
from tepo.studies.plan import Unit


@dataclass(frozen=True)
class ClaimOutcome:
    """A claim with what its runs say."""

    claim: Claim
    units: Sequence[Unit]
    facts: Facts = field(repr=False)
    # None until all runs are measured: to look at half of them and go on would make more false alarms than are promised
    answer: Answer | None = None
    # said in place of a difference of times that some runs did not live to see, for which the test takes all steps
    censored: str = ""

    @property
    def verdict(self) -> DeltaVerdict | None:
        """Word for the claim; None until it is judged."""
        return self.answer.verdict if self.answer else None

    @property
    def ended(self) -> Counter[str]:
        """Number of runs of A and of B that ended early."""
        baseline = self.units[0].row.label if self.claim.b else ""
        labels = [unit.row.label for unit in self.units if self.facts.of(unit.id).ending]
        return Counter("B" if label == baseline else "A" for label in labels)

    @property
    def done(self) -> int:
        """Runs that are measured."""
        return sum(self.facts.of(unit.key).done for unit in self.units)

    @property
    def measured(self) -> bool:
        """Tell whether all of its runs are."""
        return 0 < len(self.units) == self.done


def judge_claims(claims: Claims, units: Mapping[str, Sequence[Unit]], facts: Facts) -> list[ClaimOutcome]:
    """Judge the claims that are planned, those of each batch as one family, planned or not. units: the runs of each."""
    families: dict[str, list[tuple[ClaimOutcome, Question]]] = {}
    for claim in claims.claims:
        outcome = ClaimOutcome(claim, units.get(claim.name, ()), facts)
        question = Question(claim.name, "", claim.measure)
        if outcome.measured:
            question, words = _question(claim, outcome.units, facts)
            outcome = replace(outcome, censored=words)
        families.setdefault(claim.family, []).append((outcome, question))
    judged = {}
    for family in families.values():
        judgements = answers([question for _, question in family], in_order=family[0][0].claim.in_order)
        for (outcome, _), answer in zip(family, judgements, strict=True):
            judged[outcome.claim.name] = replace(outcome, answer=answer) if outcome.measured else outcome
    return [judged[claim.name] for claim in claims.claims if claim.name in units]


def _question(claim: Claim, units: Sequence[Unit], facts: Facts) -> tuple[Question, str]:
    """The question of a claim whose runs are all measured, and words for times that some runs did not live to see."""
    if claim.measure != "accuracy":
        return _in_training(claim, units, facts)
    parts = _by_base(units).values()
    pairs = [pair for part in parts for pair in pair_rows(read_samples(part, facts), row_key(part[0]))]
    if not claim.bases:
        (pair,) = pairs
        return pair.question(claim.tested, fewest=0), ""
    cells, first = [pair.cells for pair in pairs if pair.cells], pairs[0]
    question = Question(first.row, first.baseline, AVERAGE, region=claim.tested)
    if len(cells) == len(pairs):
        over = over_environments(cells, first.weights)
        question = replace(question, estimate=over.average, sample=over.by_environment)  # over such bases
    return question, ""


def _by_base(units: Sequence[Unit]) -> Mapping[str, Sequence[Unit]]:
    """The units of each base of a claim; all of them under one name where it names none."""
    return grouped((unit.row.setting.point.get(BASE, ""), unit) for unit in units)


def _in_training(claim: Claim, units: Sequence[Unit], facts: Facts) -> tuple[Question, str]:
    """A minus B on each seed, or A where there is no B; with bases the mean over the seeds of each base."""
    gaps: list[float] = []
    times: tuple[list[float], list[float]] = [], []  # of A and of B, where the measure is one
    for part in _by_base(units).values():
        of_row = grouped((row_key(unit), unit) for unit in part)
        runs = {row: {unit.seed: unit for unit in seeds} for row, seeds in of_row.items()}
        name, other = list(runs.items())[-1]
        base = next(iter(runs.values()))
        # read as a record keeps them: the verdict must not depend on which of the two is there
        rows = {unit.id: facts.lasting(unit.id) for unit in part}
        if claim.measure == "entropy":
            series = {
                run: np.array([(row["critic/score/mean"], row["actor/entropy"]) for row in metrics], float)
                for run, metrics in rows.items()
            }
            by_seed = [entropy_gap(series[other[seed].id], series[base[seed].id]) for seed in other]
        elif claim.b is None:
            by_seed = [_figure(claim, rows[unit.id], unit) for unit in other.values()]
        else:
            a, b = ([_figure(claim, rows[side[seed].id], side[seed]) for seed in other] for side in (other, base))
            by_seed = [x - y for x, y in zip(a, b, strict=True)]
        if claim.measure == "steps_to":
            for steps, side in zip(times, (other, base), strict=True):
                steps += [_steps(claim, rows[side[seed].id], side[seed]) for seed in other]
        gaps += [float(np.mean(by_seed))] if claim.bases else by_seed
    words = censored(*times, units[0].config.train.steps)
    compared = "" if claim.b is None else row_key(units[0])
    return Question(name, compared, claim.measure, estimate_gaps(gaps), tuple(gaps), claim.tested), words


def _figure(claim: Claim, rows: Rows, unit: Unit) -> float:
    """A run's own figure in the measure of a claim, in hundreds of its unit; NaN where it lacks it."""
    if claim.measure == "late_entropy":
        return late_mean(rows, "actor/entropy")
    if claim.measure == "late_length":
        return late_mean(rows, "response_length/mean") / 100
    if claim.measure == "late_best":
        sizes = [int(name.removeprefix(BEST)) for name in rows[-1] if name.startswith(BEST)]
        return late_mean(rows, f"{BEST}{max(sizes)}") if sizes else float("nan")
    if claim.measure == "clipped":
        return float(np.mean([row[CLIPPED] for row in rows if row.get(CLIPPED) is not None]))
    if claim.measure == "realised_kl":
        return log_mean(rows, REALISED_KL)
    return min(_steps(claim, rows, unit), unit.config.train.steps) / 100  # by the rule of registered claims


def _steps(claim: Claim, rows: Rows, unit: Unit) -> float:
    """Steps of a run to the claim's threshold, infinite where it never gets there."""
    assert claim.threshold is not None
    return steps_to(rows, VALIDATED, claim.threshold / 100, unit.config.train.steps)
