"""Even points: Sobol's sequence against scipy's, and its scrambling."""

import numpy as np
import pytest
from scipy.stats import qmc

from tepo.studies.sobol import AXES, BITS, scrambled, sobol


def test_it_is_the_sequence_of_joe_and_kuo() -> None:
    ours = [[sobol(axis, number) / 2**BITS for axis in range(AXES)] for number in range(512)]
    assert (np.array(ours) == qmc.Sobol(AXES, scramble=False, bits=BITS).random(512)).all()


@pytest.mark.parametrize("axis", [0, 1, 2, AXES - 1])
def test_each_part_of_an_axis_has_one_of_the_first_points(axis: int) -> None:
    shares = [scrambled(sobol(axis, number), "x") for number in range(256)]
    assert all(0 <= share < 1 for share in shares)
    for power in range(9):
        parts = [int(2**power * share) for share in shares[: 2**power]]
        assert sorted(parts) == list(range(2**power))


def test_two_axes_fill_the_square() -> None:
    """Owen's scrambling keeps what makes the points even on several axes: one of 16 in each square of a 4 x 4 grid."""
    points = {(int(4 * scrambled(sobol(0, n), "x")), int(4 * scrambled(sobol(1, n), "y"))) for n in range(16)}
    assert len(points) == 16


def test_other_words_are_other_points_and_the_same_words_the_same_everywhere() -> None:
    ours, others = ([scrambled(sobol(0, number), words) for number in range(64)] for words in "xy")
    assert not set(ours) & set(others)
    assert ours[:3] == [0.8728570835664868, 0.25510169100016356, 0.11934884823858738]
