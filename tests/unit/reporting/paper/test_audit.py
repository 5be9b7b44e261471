"""The audit finds what is known not to follow from the paper's tables (docs/tables.md), and nothing in what does."""

import io

import pytest
from rich.console import Console

from tepo.reporting.paper.audit import TOLERANCE, WEIGHTS, Audit, audit, average, distinct_rows
from tepo.reporting.paper.audit_claims import RANKS, SIZES, STATEMENTS
from tepo.reporting.paper.audit_view import render
from tepo.reporting.paper.reference import RowKey, all_rows, load_table, reference_row

OMNI_BY_CELLS = 2811  # the size of OMNI-MATH that its printed cells point to; the averages point to 2785


def rows_following(omni: int) -> int:
    """Number of distinct rows whose averages follow, within TOLERANCE, for that size of OMNI-MATH."""
    weights = {**WEIGHTS, "omni_math": omni}
    return sum(abs(average(row.scores, weights) - row.average) <= TOLERANCE for row in distinct_rows())


def omni_sizes() -> list[int]:
    """The sizes of OMNI-MATH under which most averages follow."""
    counts = {size: rows_following(size) for size in range(2600, 3001)}
    return [size for size, count in counts.items() if count == max(counts.values())]


def cells_possible(benchmark: str, size: int) -> tuple[int, int]:
    """Number of distinct printed cells of a benchmark that are a share k / size, cut or rounded to two decimals; and
    the number of all."""
    cells = {(row.model, row.scores[benchmark]) for row in all_rows() if row.scores[benchmark]}
    return sum(_is_share(score, size) for _, score in cells if score is not None), len(cells)


def _is_share(percent: float, size: int) -> bool:
    nearest = round(percent * size / 100)
    exact = [100 * count / size for count in (nearest, nearest + 1)]
    return any(abs(value - percent) <= 0.005 + 1e-9 or 0 <= value - percent < 0.01 for value in exact)


@pytest.fixture(scope="module")
def result() -> Audit:
    return audit()


def test_the_7b_row_gives_its_average() -> None:
    row = reference_row(RowKey("table1", method="tepo"))
    assert average(row.scores) == pytest.approx(32.60, abs=0.005)
    assert row.average == 32.59
    assert sum(row.scores.values()) / 7 == pytest.approx(34.97, abs=0.005)  # the plain mean is far off


def test_27_of_39_rows_follow(result: Audit) -> None:
    assert sum(WEIGHTS.values()) == 8808
    assert (result.following, len(result.averages)) == (27, 39)


@pytest.mark.parametrize(
    ("where", "recomputed"),
    [
        ({"table": "table1", "model": "Qwen3-14B", "method": "gpg"}, 41.83),
        ({"table": "table1", "model": "Qwen3-14B", "method": "tepo"}, 44.10),
        ({"table": "table2", "model": "DeepSeek-R1-Distill-Llama-8B", "method": "grpo_dapo"}, 42.54),
        ({"table": "table2", "model": "DeepSeek-R1-Distill-Llama-8B", "method": "tepo"}, 42.45),
        ({"table": "table2", "model": "DeepSeek-R1-Distill-Qwen-7B", "method": "grpo_dapo"}, 48.01),
        ({"table": "table2", "model": "DeepSeek-R1-Distill-Qwen-7B", "method": "tepo"}, 48.84),
        ({"table": "table3", "method": "tepo_kl_all_beta_0.1"}, 28.79),
        ({"table": "table3", "method": "tepo_kl_all_beta_0.01"}, 31.59),
        ({"table": "table3", "method": "tepo_max_entropy"}, 31.90),
        ({"table": "table3", "method": "tepo_kl_negative"}, 31.27),
        ({"table": "table4", "method": "grpo_dapo", "steps": 72, "seed": 1}, 30.51),
        ({"table": "table4", "method": "tepo", "steps": 72, "seed": 1}, 33.05),
    ],
)
def test_averages_that_do_not_follow(result: Audit, where: dict, recomputed: float) -> None:
    row = reference_row(RowKey(**where))
    check = next(
        check
        for check in result.averages
        if (check.row.table, check.row.label, check.row.model) == (row.table, row.label, row.model)
    )
    assert not check.follows
    assert check.recomputed == pytest.approx(recomputed, abs=0.006)


def test_dashes_were_averaged_as_zero() -> None:
    rows = [row for row in all_rows() if not row.complete]
    assert [round(average(row.scores), 2) for row in rows] == [2.74, 3.34, 3.66]
    assert all(abs(average(row.scores) - row.average) < 0.04 for row in rows)


def test_the_fitted_size_is_one_of_the_best_and_the_cells_disagree() -> None:
    sizes = omni_sizes()
    assert WEIGHTS["omni_math"] in sizes
    assert sizes[-1] < 2800 < OMNI_BY_CELLS
    assert rows_following(OMNI_BY_CELLS) < rows_following(WEIGHTS["omni_math"]) == 27
    assert cells_possible("omni_math", OMNI_BY_CELLS)[0] > cells_possible("omni_math", WEIGHTS["omni_math"])[0]


def test_fixed_text_is_what_the_tables_give() -> None:
    sizes, taken = omni_sizes(), WEIGHTS["omni_math"]
    by_cells, by_average = cells_possible("omni_math", OMNI_BY_CELLS), cells_possible("omni_math", taken)
    assert (
        f"OMNI-MATH is fitted: sizes {sizes[0]}-{sizes[-1]} explain most averages ({taken} taken: "
        f"{rows_following(taken)} rows). Its cells point to {OMNI_BY_CELLS}: {by_cells[0]} of {by_cells[1]} are shares "
        f"of {OMNI_BY_CELLS}, {by_average[0]} of {taken}; but with {OMNI_BY_CELLS} only "
        f"{rows_following(OMNI_BY_CELLS)} averages follow."
    ) == SIZES
    base = reference_row(RowKey("table3", method="tepo_no_kl")).average
    panel_b = [row.average for row in load_table("table3") if row.panel == "B"]
    steps = [int(row.steps) for row in load_table("table4")]
    short, long = min(steps), max(steps)
    assert not any(average > base for average in panel_b)
    assert len(RANKS[0].benchmarks) != 4
    assert short / long > 0.5
    assert long > 80
    assert [one.recomputed for one in STATEMENTS] == [
        f"0 of {len(panel_b)} rows are above its {base:.2f}",
        f"{len(RANKS[0].benchmarks)} are listed",
        f"{100 * (short / long - 1):.0f}% ({short} against {long} steps)",
        f"{long} steps x 64 prompts = {long * 64}",
    ]


@pytest.mark.parametrize("benchmark", [key for key in WEIGHTS if key != "omni_math"])
def test_other_sizes_are_confirmed_by_the_cells(benchmark: str) -> None:
    possible, cells = cells_possible(benchmark, WEIGHTS[benchmark])
    assert possible >= cells - 2


@pytest.mark.parametrize(
    ("code", "where", "found"),
    [
        ("A14", "β = 0.1", "−5.96 by the printed averages; −4.60 is against GRPO/DAPO"),
        ("A15", "Qwen2.5-7B, Δ AMC", "+0.68"),
        ("A15", "Qwen3-14B, Δ AIME24", "gain over the untrained model"),
        ("A16", "DS-Qwen-7B, TEPO over GRPO/DAPO", "+0.84"),
        ("A16", "DS-Llama-8B, TEPO's Avg.", "the order flips"),
        ("A17", "Qwen2.5-7B, Minerva", "4th, tied with KL-Cov"),
        ("A17", "Qwen2.5-7B, OlympiadBench", "tied with GPG"),
        ("A17", "Qwen3-14B, MATH-500", "tied with KL-Cov"),
        ("A18", "convergence time", "−45%"),
    ],
)
def test_findings(result: Audit, code: str, where: str, found: str) -> None:
    match = [finding for finding in result.findings if finding.code == code and where in finding.where]
    assert len(match) == 1
    assert found.replace("−", "-") in match[0].recomputed


def test_what_follows_is_not_accused(result: Audit) -> None:
    text = " ".join(finding.where for finding in result.findings)
    for fine in (
        "TEPO over GPG",
        "Mistral-7B, TEPO over",
        "Min-Entropy",
        "Table 4",
        "Qwen2.5-7B, Δ AIME24",
        "Qwen2.5-7B, AIME24",
    ):
        assert fine not in text
    assert result.checked > 4 * len(result.findings)


def test_one_screen(result: Audit) -> None:
    out = io.StringIO()
    Console(file=out, width=120, color_system=None).print(render(result))
    assert len(out.getvalue().splitlines()) <= 50
    assert "2785" in out.getvalue()
    Console(file=out, width=120, color_system=None).print(render(result, every_row=True))
    assert all(f"{row.average:.2f}" in out.getvalue() for row in distinct_rows())
