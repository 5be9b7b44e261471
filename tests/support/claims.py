"""Files of claims, and literal frames of what their runs say."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from tepo.analysis.claim_outcomes import ClaimOutcome, judge_claims
from tepo.store.early_stop import Ending
from tepo.store.evaluation_result import RightAnswers
from tepo.store.facts import Facts, Known, curves_of, facts_from, scores_of
from tepo.studies.claims import Claims, study_of
from tepo.studies.plan import Unit, unique
from tepo.studies.plan_studies import plan_studies

CLAIM = """\
  - name: {name}
    batch: {batch}
    sentence: It works
    a: {{label: A, objective: tepo_no_kl}}
    b: {{label: B, objective: grpo_dapo}}
    settings: [train.steps=2, "data.benchmarks=[add3]"]
    rule: fixed here
    region: {region}
    seeds: {seeds}
    problems: 9
    refuted_by: it does not
"""
BASES = ", ".join(f"b{number}: [train.warmup_steps={number}]" for number in range(5))  # each a run of its own


def text(*, batch: int = 1, start: int = 100, **regions: str) -> str:
    """A file of claims that state these regions, each with eight seeds of its own."""
    return "claims:\n" + "".join(
        CLAIM.format(name=name, batch=batch, region=region, seeds=list(range(start + 10 * n, start + 8 + 10 * n)))
        for n, (name, region) in enumerate(regions.items())
    )


def planned(claims: Claims, store: Path) -> list[list[Unit]]:
    return [units for _, units in plan_studies([study_of(claim) for claim in claims.claims], "laptop", store=store)]


def is_a(unit: Unit) -> bool:
    return unit.row.label.endswith(": A")


def facts(
    units: Sequence[Sequence[Unit]],
    chance: Callable[[Unit], float] = lambda unit: 0.5,
    curves: Callable[[Unit], Sequence[Mapping[str, Any]]] = lambda unit: (),
    missing: Collection[Unit] = (),
    ending: Callable[[Unit], Ending | None] = lambda unit: None,
    made: Callable[[Unit], Sequence[Mapping[str, Any]]] = lambda unit: (),
) -> Facts:
    """What runs say that are measured on 60 problems with four samples, each right with this chance."""
    runs, scores, steps = [], [], []
    for unit in unique(unit for part in units for unit in part):  # claims share runs
        known = Known("store", finished=True, ending=ending(unit), made=made(unit))
        row = {"run": unit.id, "tuning": False, "done": unit not in missing, "stale": False}
        runs.append(row | vars(known))
        drawn = np.random.default_rng([unit.seed, crc32(unit.row.label.encode())])
        for name in unit.benchmarks:
            right = tuple(map(int, drawn.binomial(4, chance(unit), 60)))
            answers = RightAnswers(tuple(f"p{number}" for number in range(60)), right, 4)
            scores.append(scores_of(unit.id, name, answers, "g", "{}", 0))
        if rows := list(curves(unit)):
            steps.append(curves_of(unit.id, rows))
    return facts_from(runs, scores, steps)


def judged(claims: Claims, units: Sequence[Sequence[Unit]], known: Facts) -> dict[str, ClaimOutcome]:
    by_name = {claim.name: part for claim, part in zip(claims.claims, units, strict=True)}
    return {one.claim.name: one for one in judge_claims(claims, by_name, known)}
