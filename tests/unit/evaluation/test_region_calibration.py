import numpy as np
import pytest

from tepo.evaluation.statistics.answer import Question, answers
from tepo.evaluation.statistics.intervals import estimate
from tepo.evaluation.statistics.region import Region
from tepo.evaluation.statistics.verdict import DeltaVerdict

pytestmark = pytest.mark.disaster
FAMILIES, SEEDS, PROBLEMS = 400, 8, 60


@pytest.mark.parametrize("luck", [0.0, 0.05])
@pytest.mark.parametrize(
    ("regions", "wrong"),
    [
        ([Region(low=0.02)] * 6, DeltaVerdict.REFUTED),  # the truth is the end of the region: the worst place
        ([Region(low=np.nextafter(0.02, 1), high=np.inf)] * 6, DeltaVerdict.HOLDS),
        ([Region(-0.02, 0.02)] * 6, DeltaVerdict.REFUTED),
        ([Region(-0.02, 0.02, outside=True)] * 6, DeltaVerdict.REFUTED),
        ([Region(low=0.02)] * 3 + [Region(low=-0.2)] * 3, DeltaVerdict.REFUTED),  # half of the family surely holds
    ],
)
def test_in_at_most_five_of_a_hundred_families_a_claim_comes_out_wrong(
    luck: float, regions: list[Region], wrong: DeltaVerdict
) -> None:
    """luck: standard deviation of a seed's difference, in shares; the rest of a cell has 0.3."""
    random, failed = np.random.default_rng(5), 0
    for _ in range(FAMILIES):
        of_seeds = luck * random.standard_normal((len(regions), SEEDS, 1))
        cells = 0.02 + of_seeds + 0.3 * random.standard_normal((len(regions), SEEDS, PROBLEMS))
        asked = [
            Question("a", "b", "average", estimate({"b": x}), region=region)
            for x, region in zip(cells, regions, strict=True)
        ]
        failed += any(answer.verdict is wrong for answer in answers(asked))
    assert failed / FAMILIES <= 0.05 + 0.015
