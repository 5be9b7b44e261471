"""The opening graphic: its title from verdicts alone, two columns that share no axis, the size of a link's picture."""

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tepo.reporting.figures.curves import LINK_DPI, png
from tepo.reporting.figures.opening_figure import audit_line, columns_figure, opening_figure, opening_table, text_figure
from tepo.reporting.tables.table import Table

Draw = Callable[[Table], Figure]
narrow = partial(columns_figure, narrow=True)


def without_paper(table: Table) -> Table:
    return replace(table, comparisons=tuple(replace(one, paper=None) for one in table.comparisons))


def test_a_table_of_the_paper_comes_first_and_one_without_comparisons_is_none(table: Table) -> None:
    plain = without_paper(table)
    assert opening_table([plain, table]) is table
    assert opening_table([plain]) is plain
    assert opening_table([replace(table, comparisons=())]) is None


@pytest.mark.parametrize("draw", [lambda table: opening_figure(table, "a tiny model"), columns_figure, narrow])
def test_the_columns_have_axes_and_names_of_their_own_and_the_caveat_is_inside(draw: Draw, table: Table) -> None:
    figure = draw(table)
    axes = {one.get_title("left"): one for one in figure.axes}
    paper, here = axes["The paper printed"], axes["Measured here"]
    assert paper.get_xlim() != here.get_xlim()
    assert not paper.get_shared_x_axes().joined(paper, here)
    words = " ".join(" ".join(text.get_text() for text in figure.texts).split())
    assert "is not refuted, and one that shows is not confirmed" in words
    assert audit_line() in words


def test_what_no_paper_printed_has_one_column(table: Table) -> None:
    assert len(opening_figure(without_paper(table), "").axes) == 1


@pytest.mark.parametrize("draw", [columns_figure, narrow])
def test_no_label_lies_on_another_or_is_cut(draw: Draw, table: Table) -> None:
    figure = draw(table)
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.canvas.draw()
    labels = [*figure.texts]
    for axes in figure.axes:
        low, high = axes.get_xlim()
        labels += [
            label for at, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True) if low <= at <= high
        ]
        labels += [*axes.get_yticklabels(), axes.xaxis.label, axes.title]
    shown = {id(one): one for one in labels if one.get_text()}
    boxes = [one.get_window_extent(renderer) for one in shown.values()]
    for index, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
        assert box.count_overlaps(boxes[:index]) == 0, list(shown.values())[index]


def test_the_picture_has_the_size_that_links_show(table: Table) -> None:
    for figure in (opening_figure(table, ""), text_figure("A title", "A finding.")):
        assert struct.unpack(">II", png(figure, LINK_DPI)[16:24]) == (1200, 630)
