"""One and the same comparison has one verdict in every table of a page."""

from dataclasses import replace

import numpy as np
import pytest

from tepo.evaluation.statistics.comparison import holm
from tepo.reporting.tables.build_table import RowSpec, TableSpec, build_table
from tepo.reporting.tables.multiple_comparisons import one_family
from tepo.reporting.tables.table import Table
from tests.unit.reporting.samples import BENCHMARKS, samples

SAMPLES = samples({"base": 0.45, "near": 0.495, **{f"same{i}": 0.45 for i in range(6)}, "far": 0.8}, problems=60)


def table(name: str, *keys: str, baseline: str = "base") -> Table:
    """A table of these rows; a row is known in other tables by its run."""
    rows = [RowSpec(key, key, "grpo", measured=(f"run-{key}",)) for key in keys]
    return build_table(SAMPLES, TableSpec(rows, BENCHMARKS, name=name, title=name, baseline=baseline))


def verdicts(table: Table) -> dict[str, str]:
    return {row.key: row.cells[-1].text for row in table.blocks[0].rows}


LONG = table("long", "base", "near", *(f"same{i}" for i in range(6)))
SHORT = table("short", "base", "near")


def test_alone_a_table_is_its_own_family_and_says_so() -> None:
    assert one_family([LONG]) == [LONG]
    assert "Verdicts at 5%, Holm-corrected over the comparisons of this table alone (7)." in LONG.notes
    assert verdicts(SHORT)["near"] == "better"
    assert verdicts(LONG)["near"] == "within noise"  # the same difference among seven


def test_together_a_comparison_has_one_verdict_and_counts_once() -> None:
    far = table("other", "base", "far")
    together = one_family([LONG, SHORT, far])
    p = {one.row.key: one.measured.p for part in together for one in part.comparisons if one.measured}
    expected = dict(zip(p, holm(np.array(list(p.values()))), strict=True))
    assert len(p) == 8
    for part in together:
        for one in part.comparisons:
            assert one.measured.p_holm == pytest.approx(expected[one.row.key])
            assert verdicts(part)[one.row.key] == one.measured.verdict
        assert "Verdicts at 5%, Holm-corrected over the 8 different comparisons of long, short, other." in part.notes
        assert verdicts(part)["base"] == "baseline"
    assert verdicts(together[0])["near"] == verdicts(together[1])["near"] == "within noise"
    assert verdicts(together[2])["far"] == "better"


def test_the_other_direction_is_the_same_comparison() -> None:
    turned = table("turned", "base", "near", baseline="near")
    first, second = one_family([SHORT, turned])
    assert first.comparisons[0].measured.p_holm == first.comparisons[0].measured.p == second.comparisons[0].measured.p
    assert (verdicts(first)["near"], verdicts(second)["base"]) == ("better", "worse")


def test_rows_of_other_runs_are_other_comparisons_whatever_their_label() -> None:
    row = RowSpec("near", "near", "grpo", measured=("another",))
    rows = [RowSpec("base", "base", "grpo", measured=("run-base",)), row]
    other = build_table(SAMPLES, TableSpec(rows, BENCHMARKS, name="other", title="other", baseline="base"))
    assert any("the 2 different comparisons" in note for note in one_family([SHORT, other])[0].notes)


def test_tables_without_comparisons_are_left_as_they_are() -> None:
    plain = build_table(SAMPLES, TableSpec([RowSpec("base", "base")], BENCHMARKS, name="plain", title="plain"))
    assert one_family([plain, SHORT]) == [plain, SHORT]
    assert replace(plain, notes=()) == one_family([replace(plain, notes=())])[0]
