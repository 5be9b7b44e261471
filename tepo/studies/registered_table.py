"""Registered claims as a table: what was said, when, what is there, and how it came out."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from tepo.evaluation.comparison import Difference, Verdict, compare, pair_rows
from tepo.evaluation.decisions import Decision, decide
from tepo.evaluation.equal_reward import entropy_difference
from tepo.evaluation.intervals import LEVEL
from tepo.evaluation.power import (
    MOST_SEEDS,
    Spread,
    equivalent_from,
    found_from,
    seeds_needed,
    spread_of,
    spread_of_seeds,
)
from tepo.reporting.table import MISSING, Block, Cell, Column, Kind, Row, Table, percent_cell
from tepo.studies.claims import Claim, Claims
from tepo.studies.cost import Cost
from tepo.studies.plan import Unit
from tepo.studies.price import price
from tepo.studies.registration import registered
from tepo.studies.study_table import read_samples, record_notes, row_key

_COLUMNS = (
    Column("delta", "Δ", Kind.DELTA),
    Column("verdict", "A against B", Kind.TEXT),
    Column("claim", "The claim", Kind.TEXT),
    Column("expect", "It says", Kind.TEXT),
    Column("margin", "Margin", Kind.TEXT),
    Column("runs", "Runs", Kind.TEXT),
    Column("price", "CPU hours to do", Kind.TEXT),
    Column("registered", "Registered", Kind.TEXT),
    Column("ran", "Ran", Kind.TEXT),
)


@dataclass(frozen=True)
class Result:
    """A claim whose runs are all there."""

    difference: Difference
    spread: Spread | None


def registered_table(claims: Claims, units: Sequence[Sequence[Unit]], known: Sequence[Cost]) -> Table:
    """units: of each testable claim, in order. known: what runs have cost.

    A claim is judged when all of its runs are measured, not before: looking at half of them and going on would make
    more false alarms than are promised.
    """
    testable = dict(zip((claim.name for claim in claims.testable), units, strict=True))
    results = {claim.name: _result(claim, testable[claim.name]) for claim in claims.testable}
    margins = [(claim.margin or 0) / 100 for claim in claims.testable]
    decisions = dict(
        zip(testable, decide([one.difference if one else None for one in results.values()], margins), strict=True)
    )
    dates = registered(claims.path)
    rows = []
    for claim in claims.claims:
        if claim.needs:
            rows.append(Row(claim.name, claim.name, (MISSING, Cell(), Cell(text="not testable yet"), *[Cell()] * 6)))
            continue
        decision, part = decisions[claim.name], testable[claim.name]
        words = (
            *_words(claim, decision, results[claim.name], len(testable)),
            *_state(claim, part, known),
            *_dates(dates[claim.name], part),
        )
        rows.append(Row(claim.name, claim.name, (_delta(decision), *(Cell(text=text) for text in words))))
    block = Block("Claims", _COLUMNS, tuple(rows))
    notes = (*_notes(claims), *record_notes([unit for part in units for unit in part]))
    return Table("registered", "Claims registered before their runs", (block,), notes)


def _result(claim: Claim, units: Sequence[Unit]) -> Result | None:
    """None until everything is measured."""
    if not all(unit.done() for unit in units):
        return None
    if claim.measure == "entropy":
        return _entropy(units)
    frame, baseline = read_samples(units), row_key(units[0])
    (difference,), (pair,) = compare(frame, baseline), pair_rows(frame, baseline)
    return Result(difference, spread_of(pair.cells, pair.weights) if pair.cells else None)


def _entropy(units: Sequence[Unit]) -> Result:
    """Of the second row against the first, seed by seed."""
    runs: dict[str, dict[int, np.ndarray]] = {}
    for unit in units:
        rows = [[row["critic/score/mean"], row["actor/entropy"]] for row in unit.metrics()]
        runs.setdefault(row_key(unit), {})[unit.seed] = np.array(rows, dtype=float)
    (_, base), (name, other) = runs.items()
    difference = entropy_difference(name, [(other[seed], base[seed]) for seed in other])
    return Result(difference, spread_of_seeds(difference.error * difference.seeds**0.5))


def _delta(decision: Decision | None) -> Cell:
    one = decision.difference if decision else None
    return percent_cell(one.delta, one.low, one.high) if one else MISSING


def _words(claim: Claim, decision: Decision | None, result: Result | None, family: int) -> tuple[str, str]:
    """The verdict on A against B, and on the claim."""
    if decision is None or result is None:
        return "", ""
    verdict = decision.verdict
    if verdict is not Verdict.UNDECIDED:
        return str(verdict), claim.outcome(verdict)
    return f"{verdict}: ±{100 * decision.difference.half:.1f}, {_would_need(claim, result, family)}", str(verdict)


def _would_need(claim: Claim, result: Result, family: int) -> str:
    """The seeds that would find a difference of the margin with 80%, or show equal rows to be equivalent."""
    if result.spread is None:
        return "seeds needed unknown"
    thresholds = equivalent_from if "equivalent" in claim.expect else found_from
    seeds = seeds_needed(result.spread, (claim.margin or 0) / 100, (1 - LEVEL) / family, thresholds)
    return f"needs {seeds or f'more than {MOST_SEEDS}'} seeds"


def _state(claim: Claim, units: Sequence[Unit], known: Sequence[Cost]) -> tuple[str, str, str, str]:
    done = sum(unit.done() for unit in units)
    hours = price(units, known, "").cpu_s / 3600
    priced = f"{hours:.2f}" if known or done == len(units) else ""
    return " or ".join(claim.expect), f"{claim.margin:g} {claim.unit}", f"{done} of {len(units)}", priced


def _dates(commit: datetime | None, units: Sequence[Unit]) -> tuple[str, str]:
    """When the claim was committed, and the first and last day of its runs."""
    sessions = [session for unit in units for session in unit.sessions()]
    days = sorted(datetime.fromisoformat(str(time)) for one in sessions if (time := one.get("started")))
    ran = "" if not days else " to ".join(dict.fromkeys(f"{day:%Y-%m-%d}" for day in (days[0], days[-1])))
    if commit is None:
        return "unknown: not committed here", ran
    early = bool(days) and days[0] < commit
    return f"{commit:%Y-%m-%d}", f"{ran}, begun before it was registered" if early else ran


def _notes(claims: Claims) -> tuple[str, ...]:
    family = len(claims.testable)
    return (
        "Δ = A above B with its 95% interval: points of average accuracy, or, where the margin is in nats, entropy at "
        f"equal reward in training (docs/evaluation.md); verdicts at 5%, corrected over the family of {family} "
        "registered claims, measured or not: better or worse where the difference is not 0, equivalent where it is "
        "within the margin, both by Holm's procedure (docs/evaluation.md).",
        "A claim is judged when all of its runs are measured. Registered: the commit since which it reads as it does.",
        *(_text(claim) for claim in claims.claims),
    )


def _text(claim: Claim) -> str:
    refuted = f"Refuted by: {claim.refuted_by}."
    if not (claim.a and claim.b):
        return f"{claim.name}: {claim.sentence}. Needs {claim.needs}. {refuted}"
    return (
        f"{claim.name}: {claim.sentence}. A: {claim.a.label}; B: {claim.b.label}. Settings: {claim.rule}. "
        f"Seeds {', '.join(map(str, claim.seeds))}; new test problems from seed {claim.problems}. {refuted}"
    )
