"""The figure of registered claims: the size of a link's picture, what claims say, and no more lines than have room."""

import math
from dataclasses import replace

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from tepo.reporting.figures.claims_figure import ClaimLine, by_unit, claims_figure
from tepo.reporting.figures.curves import LINK_DPI, LINK_INCHES

ONE = ClaimLine("one", "It works", "A against B", "", "points", "holds", 4.0, 3.0, 5.0, (3.5, 4.5), ((2.0, math.inf),))


def test_units_stand_apart_and_claims_that_hold_come_first() -> None:
    refuted, entropy = replace(ONE, name="no", outcome="refuted", delta=9.0), replace(ONE, unit="hundredths of a nat")
    assert by_unit([refuted, entropy, ONE, replace(ONE, outcome="")]) == {
        "hundredths of a nat": [entropy],
        "points": [ONE, refuted],
    }
    assert len(claims_figure([refuted, entropy, ONE], "Found", "Ran").axes) == 2


@pytest.mark.parametrize(
    ("regions", "shaded"),
    [(((2.0, math.inf),), [True]), (((-math.inf, -2.0), (2.0, math.inf)), [False, True]), (((-9.0, 9.0),), [True])],
)
def test_what_a_claim_says_is_shaded(regions: tuple[tuple[float, float], ...], shaded: list[bool]) -> None:
    (axes,) = claims_figure([replace(ONE, regions=regions)], "Found", "Ran").axes
    parts = [part.get_paths()[0].get_extents() for part in axes.collections]
    assert [part.x0 <= ONE.low and ONE.high <= part.x1 for part in parts] == shaded


def test_it_has_the_size_of_a_link_and_says_what_has_no_room() -> None:
    figure = claims_figure([replace(ONE, name=str(number)) for number in range(33)], "Found", "Ran")
    assert tuple(figure.get_size_inches()) == LINK_INCHES
    assert LINK_INCHES[0] * LINK_DPI == 1200
    assert len(figure.axes[0].get_yticklabels()) == 27
    assert "On the page: 6 further claims." in " ".join(text.get_text() for text in figure.texts)


def test_a_unit_of_few_claims_is_left_out_before_the_others_are_crowded() -> None:
    many = [replace(ONE, name=str(number)) for number in range(26)]
    figure = claims_figure([replace(ONE, unit="percent"), *many], "Found", "Ran")
    assert [len(axes.get_yticklabels()) for axes in figure.axes] == [26]
    assert "On the page: 1 further claim." in " ".join(text.get_text() for text in figure.texts)


def test_long_claims_are_told_apart_by_their_ends() -> None:
    sentence = "On chains of 200 tokens tight bounds of a sequence ratio end 2 points above the paper's, each at its {}"
    two = [replace(ONE, sentence=sentence.format(end), outcome="undecided") for end in ("best rate", "own rate")]
    names = [label.get_text() for label in claims_figure(two, "Found", "Ran").axes[0].get_yticklabels()]
    assert len(set(names)) == 2
    assert all(name.startswith("On chains of 200 tokens") and len(name) < 90 for name in names)


@pytest.mark.parametrize("outcome", ["holds", "refuted", "undecided"])
def test_a_claim_of_any_length_fits_beside_its_outcome(outcome: str) -> None:
    sentence = "Clip-Cov ends above GRPO/DAPO when each has its own setting of equal tuning for the same cost"
    lines = [replace(ONE, sentence=sentence[:letters], outcome=outcome) for letters in range(60, len(sentence) + 1)]
    for one in lines:
        figure = claims_figure([one], "Found", "Ran")
        (label,) = figure.axes[0].get_yticklabels()
        assert label.get_window_extent(FigureCanvasAgg(figure).get_renderer()).x0 > 0, label.get_text()
