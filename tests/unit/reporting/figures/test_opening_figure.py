"""The opening graphic: its title from verdicts alone, two columns that share no axis, the size of a link's picture."""

import struct
from dataclasses import replace

from tepo.reporting.figures.curves import png
from tepo.reporting.figures.opening_figure import DPI, audit_line, headline, opening_figure, opening_table, text_figure
from tepo.reporting.tables.table import Table


def without_paper(table: Table) -> Table:
    return replace(table, comparisons=tuple(replace(one, paper=None) for one in table.comparisons))


def test_the_title_counts_what_shows(table: Table) -> None:
    assert headline(table) == "Of 1 difference that the paper prints, 1 shows here"
    against = tuple(replace(one, paper=one.paper and -one.paper) for one in table.comparisons)
    opposite = headline(replace(table, comparisons=against))
    assert opposite == "Of 1 difference that the paper prints, none show here"


def test_without_printed_differences_the_title_counts_verdicts(table: Table) -> None:
    words = [str(one.measured.verdict) for one in table.comparisons if one.measured]
    said = headline(without_paper(table))
    assert said.startswith("2 rows against GRPO/DAPO: ")
    assert all(f"1 {word}" in said for word in words)
    first, *others = without_paper(table).comparisons
    elsewhere = replace(first, baseline=replace(first.baseline, label="GRPO/DAPO, rate=2"))
    several = headline(replace(table, comparisons=(elsewhere, *others)))
    assert several.startswith("2 rows against the baseline of the same setting: ")


def test_a_table_of_the_paper_comes_first_and_one_without_comparisons_is_none(table: Table) -> None:
    plain = without_paper(table)
    assert opening_table([plain, table]) is table
    assert opening_table([plain]) is plain
    assert opening_table([replace(table, comparisons=())]) is None


def test_the_columns_have_axes_and_names_of_their_own_and_the_caveat_is_inside(table: Table) -> None:
    figure = opening_figure(table, "a tiny model")
    left, right = figure.axes
    assert [axes.get_title("left") for axes in (left, right)] == ["The paper printed", "Measured here"]
    assert left.get_xlim() != right.get_xlim()
    assert not left.get_shared_x_axes().joined(left, right)
    words = " ".join(" ".join(text.get_text() for text in figure.texts).split())
    assert "is not refuted, and one that shows is not confirmed" in words
    assert audit_line() in words
    assert len(opening_figure(without_paper(table), "").axes) == 1


def test_the_picture_has_the_size_that_links_show(table: Table) -> None:
    for figure in (opening_figure(table, ""), text_figure("A title", "A finding.")):
        assert struct.unpack(">II", png(figure, DPI)[16:24]) == (1200, 630)
