import numpy as np
import pytest

from tepo.evaluation.statistics.comparison import AVERAGE, difference_of
from tepo.evaluation.statistics.intervals import estimate
from tepo.evaluation.statistics.region import Region, RegionVerdict, judge_regions

pytestmark = pytest.mark.disaster
FAMILIES, SEEDS, PROBLEMS = 400, 8, 60


@pytest.mark.parametrize("luck", [0.0, 0.05])
@pytest.mark.parametrize(
    ("regions", "wrong"),
    [
        ([Region(low=0.02)] * 6, RegionVerdict.REFUTED),  # the truth is the end of the region: the worst place
        ([Region(low=np.nextafter(0.02, 1), high=np.inf)] * 6, RegionVerdict.HOLDS),
        ([Region(-0.02, 0.02)] * 6, RegionVerdict.REFUTED),
        ([Region(-0.02, 0.02, outside=True)] * 6, RegionVerdict.REFUTED),
        ([Region(low=0.02)] * 3 + [Region(low=-0.2)] * 3, RegionVerdict.REFUTED),  # half of the family surely holds
    ],
)
def test_in_at_most_five_of_a_hundred_families_a_claim_comes_out_wrong(
    luck: float, regions: list[Region], wrong: RegionVerdict
) -> None:
    """luck: standard deviation of a seed's difference, in shares; the rest of a cell has 0.3."""
    random, failed = np.random.default_rng(5), 0
    for _ in range(FAMILIES):
        of_seeds = luck * random.standard_normal((len(regions), SEEDS, 1))
        cells = 0.02 + of_seeds + 0.3 * random.standard_normal((len(regions), SEEDS, PROBLEMS))
        found = [difference_of("r", AVERAGE, estimate({"b": x}), SEEDS) for x in cells]
        failed += any(one is not None and one.outcome is wrong for one in judge_regions(found, regions))
    assert failed / FAMILIES <= 0.05 + 0.015
