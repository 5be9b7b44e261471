"""Verdicts of the shipped claims from their records: those that they were registered with, and the composite rule's."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tepo.studies.records.read import with_records

from tepo.analysis.claim_outcomes import ClaimOutcome, judge_claims
from tepo.evaluation.statistics.region import Outcome
from tepo.studies.claims import SCALE, load_claims, study_of
from tepo.studies.plan_studies import plan_studies

pytestmark = pytest.mark.disaster  # it reads 176 runs
REGISTERED = {
    "active_clip": "better holds", "active_clip_without_gradient_clipping": "better holds",
    "stale_data": "equivalent refuted", "half_the_steps": "worse refuted", "kl_on_all_tokens": "better holds",
    "kl_on_all_tokens_sampled": "worse refuted", "clip_cov": "equivalent refuted", "kl_cov": "undecided undecided",
    "mask_and_entropy": "equivalent refuted", "kl_at_equal_realised_kl": "undecided undecided",
    "tuned_tepo": "undecided undecided", "tuned_clip_cov": "undecided undecided",
    "tuned_kl_cov": "undecided undecided", "tuned_gspo": "undecided undecided",
    "aggregation_and_ceiling": "equivalent holds",
}  # fmt: skip
# p of "A is at least 2 points above B", Student's t of 8 seeds, Holm over 15: from an audit with other code
AUDIT = {"kl_cov": 0.002, "tuned_kl_cov": 0.002, "tuned_gspo": 0.002, "tuned_tepo": 0.044, "tuned_clip_cov": 0.044}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ClaimOutcome]:
    claims = load_claims()
    store = tmp_path_factory.mktemp("none")
    planned = plan_studies([study_of(claim) for claim in claims.testable], SCALE, store=Path(store))
    units = [units for _, units in with_records(planned, SCALE)]
    return {one.claim.name: one for one in judge_claims(claims, units) if one.claim.batch == 1}


def test_the_first_batch_keeps_the_verdicts_that_it_was_registered_with(judged: dict[str, ClaimOutcome]) -> None:
    found = {name: f"{one.decision and one.decision.verdict} {one.outcome}" for name, one in judged.items()}
    assert found == REGISTERED


def test_the_composite_rule_agrees_with_an_audit(judged: dict[str, ClaimOutcome]) -> None:
    composite = {name: one.composite for name, one in judged.items() if one.composite}
    for name, p in AUDIT.items():
        assert composite[name].outcome == Outcome.REFUTED
        assert composite[name].p == pytest.approx(p, abs=0.0025)
    assert composite["kl_at_equal_realised_kl"].outcome == Outcome.UNDECIDED
    for name, words in REGISTERED.items():  # what its own rule decided stays so
        assert words.endswith(("undecided", composite[name].outcome))


def test_every_p_is_that_of_scipys_tails(judged: dict[str, ClaimOutcome]) -> None:
    for name, one in judged.items():
        if one.claim.expect == ("better",):
            assert one.difference is not None
            tails, margin = one.difference.tails, (one.claim.margin or 0) / 100
            t = (one.difference.delta - margin) / one.difference.error
            p = tails.share * stats.t.cdf(t, tails.seeds) + (1 - tails.share) * stats.t.cdf(t, tails.problems)
            assert one.claim.tested.p_values(one.difference)[1] == pytest.approx(np.float64(p), rel=1e-6), name
