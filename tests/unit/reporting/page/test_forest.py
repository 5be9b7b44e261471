"""Forest plots: positions of differences and of what claims say, and the tables beside them."""

import math
from dataclasses import replace

import pytest

from tepo.evaluation.statistics.comparison import Difference
from tepo.evaluation.statistics.comparison_verdict import Verdict
from tepo.reporting.colours import UNTRAINED, look, looks
from tepo.reporting.figures.claims_figure import ClaimLine
from tepo.reporting.page.forest import Forest, claim_forests, forests
from tepo.reporting.tables.renderers import html_table
from tepo.reporting.tables.table import BASELINE, VERDICT, Block, Cell, Column, Comparison, Kind, Table, TableRow


def compared(*rows: tuple[str, float, str], paper: float | None = None, method: str = "tepo") -> Table:
    """A table of differences with intervals of two points, the first row also printed in the paper."""
    columns = (Column("average", "Avg."), Column("delta", "Δ Avg.", Kind.DELTA), Column(VERDICT, "Verdict", Kind.TEXT))
    base = TableRow("base", "plain", (Cell(50.0), Cell(), Cell(text=BASELINE)), "grpo", measured=("r/add3",))
    lines = tuple(
        TableRow(
            label,
            label,
            (Cell(50 + delta), Cell(delta, delta - 1, delta + 1), Cell(text=verdict)),
            method,
            measured=("r/add3",),
        )
        for label, delta, verdict in rows
    )
    printed = () if paper is None else (Comparison(lines[0], base, paper, None),)
    return Table("mine", "A study", (Block("Measured", columns, (base, *lines), baseline="plain"),), ("note",), printed)


def one(table: Table) -> Forest:
    (forest,) = forests(table)
    return forest


def test_positions_rise_with_the_values_and_lie_within_the_plot() -> None:
    forest = one(compared(("a", -3.0, "worse"), ("b", 0.5, "not decided"), ("c", 2.0, "better"), paper=1.25))
    positions = [line.at for line in forest.lines]
    assert positions == sorted(positions)
    assert positions[0] < forest.zero < positions[1]
    for line in forest.lines:
        assert 0 < line.low < line.at < line.high < 100
        assert line.beyond == ()
    first = forest.lines[0]
    assert (first.text, first.interval) == ("−3.0", "[−4.0, −2.0]")
    assert [line.mark for line in forest.lines] == ["worse", "noise", "better"]
    ticks = {text: x for x, text in forest.ticks}
    assert ticks["0"] == forest.zero
    assert forest.lines[2].at == pytest.approx(ticks["+2"])


def test_what_the_paper_printed_is_text_and_moves_nothing_on_our_axis() -> None:
    rows = [("a", -3.0, "worse"), ("b", 0.5, "not decided")]
    printed, plain = one(compared(*rows, paper=41.25)), one(compared(*rows))
    assert [line.printed for line in printed.lines] == ["+41.25", ""]
    assert printed.ticks == plain.ticks
    assert [(line.low, line.at, line.high) for line in printed.lines] == [
        (line.low, line.at, line.high) for line in plain.lines
    ]


def test_claims_are_sorted_by_outcome_beside_what_they_say() -> None:
    def claim(name: str, outcome: str, delta: float, *regions: tuple[float, float], unit: str = "points") -> ClaimLine:
        known = ClaimLine(name, f"{name} works", "A against B", "details", unit)
        return replace(known, outcome=outcome, delta=delta, low=delta - 1, high=delta + 1, regions=regions)

    far = claim("far", "undecided", 2.5, (-math.inf, -2.0), (2.0, math.inf))
    holds, entropy = claim("holds", "holds", 4.0, (2.0, math.inf)), claim("e", "refuted", 0.1, (-1, 1), unit="nats")
    waiting = ClaimLine("later", "It will work", "", "needs a machine", "points")
    points, nats = claim_forests([far, claim("refuted", "refuted", -3.0, (2.0, math.inf)), holds, waiting, entropy])
    assert [line.verdict for line in points.lines] == ["holds", "refuted", "undecided"]
    assert [line.mark for line in points.lines] == ["holds", "refuted", "noise"]
    assert [line.label for line in nats.lines] == ["e works"]
    (beside,) = claim_forests([claim("beside", "refuted", 0.1, (5.0, math.inf))])[0].lines
    (beyond,) = claim_forests([claim("beyond", "refuted", 0.1, (5000.0, math.inf))])[0].lines
    assert beside.high < beside.regions[0][0] < 100, "what a claim says is on the scale"
    assert beyond.regions == ((100.0, 100.0),), "or is not drawn, where it lies far off"
    ((start, end),) = points.lines[0].regions
    assert points.zero < start < points.lines[0].at < end == 100
    (below, above) = points.lines[2].regions
    assert below[0] == 0
    assert below[1] < points.zero < above[0] == start


def test_what_leaves_the_scale_is_marked() -> None:
    table = compared(("a", -1.0, "worse"), ("b", 0.5, "not decided"))
    block = table.blocks[0]
    untrained = TableRow("u", "untrained", (Cell(10.0), Cell(-40.0, -42.0, -38.0), Cell(text="worse")), UNTRAINED)
    forest = one(replace(table, blocks=(replace(block, rows=(*block.rows, untrained)),)))
    *trained, last = forest.lines  # the trained rows set the scale
    assert last.beyond == ("left",)
    assert last.at == forest.ticks[0][0]
    assert [line.beyond for line in trained] == [(), ()]
    assert forest.ticks[0][1] == "−2"


@pytest.mark.parametrize("values", [(0.0,), (1e-9,), (1234.5, -3.0)])
def test_any_size_has_a_scale(values: tuple[float, ...]) -> None:
    forest = one(compared(*((f"row {value}", value, "not decided") for value in values)))
    assert len(forest.ticks) >= 2
    assert all(0 <= line.at <= 100 for line in forest.lines)


def test_a_table_that_compares_nothing_has_no_plot() -> None:
    table = compared()
    assert forests(table) == []


def test_the_plot_says_seeds_comparisons_and_p_where_nothing_is_decided() -> None:
    table = compared(("a", -1.0, "not decided (p = .21)"))
    block = table.blocks[0]
    known = Difference("a", "average", -0.01, -0.02, 0.0, p=0.03, p_holm=0.21, family=7, seeds=3)
    comparison = Comparison(block.rows[1], block.rows[0], None, known)
    (line,) = one(replace(table, comparisons=(comparison,))).lines
    assert line.verdict == "not decided: 3 seeds, 7 comparisons, p = .21"
    assert line.mark == "noise"


def test_every_verdict_has_a_shape() -> None:
    for verdict in Verdict:
        (line,) = one(compared(("a", 1.0, str(verdict)))).lines
        assert (line.mark == "none") is (verdict is Verdict.NOT_COMPARABLE)


def test_rows_that_were_not_run_show_a_command_and_no_dashes() -> None:
    table = compared(("a", -1.0, "worse"))
    block = table.blocks[0]
    lacking = TableRow("x", "not run", (Cell(), Cell(), Cell()), "gspo")
    table = replace(table, blocks=(replace(block, rows=(*block.rows, lacking)),), command="tepo ablate 'a study'")
    text = html_table.render(table)
    assert '<td class="missing none" colspan="3">not measured</td>' in text
    assert "1 row not measured yet. Run this to fill the table: " in text
    assert '<code class="command">tepo ablate &#x27;a study&#x27;</code>' in text
    assert "Some seeds or benchmarks not measured yet." in html_table.body(replace(table, blocks=(block,)))
    assert "Run this" not in html_table.body(replace(table, command=""))


def test_a_row_links_to_a_run_that_the_page_has() -> None:
    table = compared(("a", -1.0, "worse"))
    assert html_table.body(table, {"r"}).count('<a href="#run-r">') == 2
    assert "<a " not in html_table.body(table, {"other"})


def test_fifty_rows_of_one_method_look_different() -> None:
    for methods in (["tepo"] * 50, ["gspo", "a method of mine"] * 25):
        own = looks({f"row {index}": method for index, method in enumerate(methods)})
        assert len(set(own.values())) == 50


def test_the_swatch_has_the_dash_of_the_curves() -> None:
    assert "stroke-dasharray" not in html_table.swatch(look("tepo"), "")
    dash = look("tepo_no_kl").dash
    assert f'stroke-dasharray="{" ".join(f"{2 * part:g}" for part in dash)}"' in html_table.swatch(None, "tepo_no_kl")
    assert html_table.swatch(None, "") == ""
