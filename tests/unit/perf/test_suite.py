"""The benchmark table: what counts as worse, the second look, the worst of several runs, the cost model."""

import json
from pathlib import Path

import numpy as np
import pytest

from perf import __main__ as table
from perf.cost_growth import fit, stepper
from perf.suite import Row, fused_rows


def row(ratio: float, higher: bool = True, guarded: bool = True, name: str = "a") -> Row:
    return Row(name, "s", ratio, 1.0, ratio, 2.0, higher, guarded)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Baselines of their own."""
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    return tmp_path


def measured(monkeypatch: pytest.MonkeyPatch, *looks: list[Row]) -> list[int]:
    """Let the benchmarks find these rows, one look after the other.
    Returns the turns' multipliers, filled as they are asked for."""
    asked, left = [], list(looks)

    def run(name: str, short: bool, more: int = 1) -> tuple[list[Row], dict]:
        asked.append(more)
        return left.pop(0), {}

    monkeypatch.setattr(table, "run", run)
    return asked


def test_ratio_directions() -> None:
    assert row(3.0).met
    assert not row(3.0, higher=False).met
    assert row(3.0).worse(4.5) == pytest.approx(1.5)
    assert row(3.0, higher=False).worse(2.0) == pytest.approx(1.5)


def test_a_row_over_a_fifth_worse_twice_fails(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table.write("cli", True, [([row(4.0)], {})])
    asked = measured(monkeypatch, [row(3.0)], [row(3.1)])
    assert not table.check("cli")
    assert asked == [1, table.MORE]


def test_the_second_look_decides(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table.write("cli", True, [([row(4.0)], {})])
    measured(monkeypatch, [row(3.0)], [row(3.9)])
    assert table.check("cli")


def test_within_a_fifth_and_unguarded_rows_pass(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table.write("cli", True, [([row(4.0), row(4.0, guarded=False, name="b")], {})])
    asked = measured(monkeypatch, [row(3.4), row(1.0, guarded=False, name="b")])
    assert table.check("cli")
    assert asked == [1]


def test_a_guarded_row_that_is_gone_fails(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table.write("cli", True, [([row(4.0)], {})])
    measured(monkeypatch, [])
    assert not table.check("cli")


@pytest.mark.parametrize(("higher", "worst"), [(True, 3.0), (False, 4.0)])
def test_the_worst_run_is_kept_with_the_spread(results: Path, higher: bool, worst: float) -> None:
    table.write("cli", True, [([row(ratio, higher)], {}) for ratio in (3.5, 3.0, 4.0)])
    stored = json.loads((results / "cli_short.json").read_text())
    assert [Row(**kept).ratio for kept in stored["rows"]] == [worst]
    assert stored["spread"]["a"] == pytest.approx(1 / 3)


def test_committed_baselines_guard_every_short_benchmark() -> None:
    for name in table.GUARDED:
        stored = table.stored(name, True)
        guarded = [kept["name"] for kept in stored["rows"] if kept["guarded"]]
        assert guarded, name
        assert all(stored["spread"][kept] <= 0.15 for kept in guarded), (name, stored["spread"])


def test_jobs_of_the_fused_op_are_not_mixed() -> None:
    variants = {
        "naive": 4.0,
        "tepo": 2.0,
        "naive with entropy gradient": 9.0,
        "tepo with entropy gradient": 3.0,
        "trl": 8.0,
    }
    found = fused_rows(
        {"tokens": 4096, "rows": {name: {"cpu_s": value, "peak_mib": value} for name, value in variants.items()}}
    )
    ratios = {found_row.name: found_row.ratio for found_row in found if found_row.name.endswith("time")}
    assert ratios == {
        "fused op / naive, time": 0.5,
        "fused op / naive with entropy gradient, time": 1 / 3,
        "fused op / trl, time": 0.25,
    }


def test_cost_model_takes_no_negative_part() -> None:
    features = np.array([[1.0, 10.0], [1.0, 20.0], [1.0, 40.0]])
    assert fit(features, np.array([13.0, 23.0, 43.0])) == pytest.approx([13.0, 23.0, 43.0])
    assert (
        np.abs(fit(features, np.array([10.0, 40.0, 160.0])) / [10.0, 40.0, 160.0] - 1).max() > 0.15
    )  # quadratic growth shows


def test_a_growth_cell_makes_responses_of_its_length() -> None:
    sampling, updates, prompt = stepper((8, 20), samples=2)(0)  # asserts the token count
    assert sampling > 0
    assert updates > 0
    assert 3 < prompt < 64
