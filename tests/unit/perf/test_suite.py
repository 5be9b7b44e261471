"""The benchmark table: what counts as worse, the second look, the worst of several runs, the cost model."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from perf import __main__ as table
from perf.cost_growth import fit, stepper
from perf.machine import cpu_kind
from perf.products import SHAPES, products
from perf.suite import BenchmarkRow, Guard, fused_rows
from tepo.policy.model.load_policy import load_policy
from tepo.policy.model.model_location import resolve

INTEL, AMD, ARM = "Intel Xeon, AVX-512", "AMD EPYC, AVX2", "Graviton, NEON"


def row(ratio: float, higher: bool = True, guard: Guard = "own CPU", name: str = "a") -> BenchmarkRow:
    return BenchmarkRow(name, "s", ratio, 1.0, ratio, 2.0, higher, guard)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Baselines of their own."""
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    return tmp_path


def on(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go on as on this kind of CPU."""
    monkeypatch.setattr(table, "machine", lambda: {"cpu": cpu})


def measured(monkeypatch: pytest.MonkeyPatch, *looks: list[BenchmarkRow]) -> list[int]:
    """Let the benchmarks find these rows, one look after the other.
    Returns the turns' multipliers, filled as they are asked for."""
    asked, left = [], list(looks)

    def run(name: str, short: bool, more: int = 1) -> tuple[list[BenchmarkRow], dict]:
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
    table.write("cli", True, [([row(4.0), row(4.0, guard="", name="b")], {})])
    asked = measured(monkeypatch, [row(3.4), row(1.0, guard="", name="b")])
    assert table.check("cli")
    assert asked == [1]


def test_a_guarded_row_that_is_gone_fails(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table.write("cli", True, [([row(4.0)], {})])
    measured(monkeypatch, [])
    assert not table.check("cli")


@pytest.mark.parametrize(("higher", "worst"), [(True, 3.0), (False, 4.0)])
def test_the_worst_run_is_kept_with_the_spread(results: Path, higher: bool, worst: float) -> None:
    table.write("cli", True, [([row(ratio, higher)], {}) for ratio in (3.5, 3.0, 4.0)])
    (entry,) = json.loads((results / "cli_short.json").read_text()).values()
    assert [BenchmarkRow(**kept).ratio for kept in entry["rows"]] == [worst]
    assert entry["spread"]["a"] == pytest.approx(1 / 3)


def test_each_kind_of_cpu_keeps_its_own_results(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(INTEL, monkeypatch)
    table.write("cli", True, [([row(4.0)], {})])
    on(AMD, monkeypatch)
    table.write("cli", True, [([row(3.0)], {})])
    table.write("cli", True, [([row(2.0)], {})])
    kept = {cpu: [kept["ratio"] for kept in entry["rows"]] for cpu, entry in table.stored("cli", True).items()}
    assert kept == {INTEL: [4.0], AMD: [2.0]}


def test_stored_figures_are_printed_with_their_cpu(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for cpu, ratio in ((INTEL, 4.0), (AMD, 3.0)):
        on(cpu, monkeypatch)
        table.write("cli", True, [([row(ratio), row(ratio, name="b")], {})])
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["perf", "--stored", "--short", "cli"])
    table.main()
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [[cpu for cpu in (INTEL, AMD) if line.endswith(cpu)] for line in lines] == [[INTEL]] * 2 + [[AMD]] * 2


def test_only_the_baseline_of_the_same_kind_of_cpu_counts(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(INTEL, monkeypatch)
    table.write("cli", True, [([row(9.0)], {})])
    on(AMD, monkeypatch)
    measured(monkeypatch, [row(0.1)])
    assert table.check("cli")
    table.write("cli", True, [([row(3.0)], {})])
    measured(monkeypatch, [row(2.6)])
    assert table.check("cli")
    measured(monkeypatch, [row(2.4)], [row(2.4)])
    assert not table.check("cli")


@pytest.mark.parametrize(("ratio", "holds"), [(2.0, True), (2.9, True), (3.1, False)])
def test_without_a_baseline_a_cost_over_its_products_is_held_to_its_target(
    results: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, holds: bool
) -> None:
    on(INTEL, monkeypatch)
    table.write("cli", True, [([row(9.0, higher=False, guard="target")], {})])
    on(AMD, monkeypatch)
    found = [row(ratio, higher=False, guard="target")]
    measured(monkeypatch, found, found)
    assert table.check("cli") == holds


@pytest.mark.parametrize(
    ("guard", "higher", "ratio", "holds"),
    [
        ("any CPU", True, 2.6, True),
        ("any CPU", True, 2.4, False),
        ("any CPU", False, 4.7, True),
        ("any CPU", False, 4.9, False),
        ("other CPUs", True, 2.1, True),
        ("other CPUs", True, 1.9, False),
        ("other CPUs", False, 5.9, True),
        ("other CPUs", False, 6.1, False),
    ],
)
def test_a_ratio_that_a_cpu_hardly_changes_is_compared_with_the_worst_baseline(
    results: Path, monkeypatch: pytest.MonkeyPatch, guard: Guard, higher: bool, ratio: float, holds: bool
) -> None:
    for cpu, stored in ((INTEL, 3.0), (ARM, 4.0)):
        on(cpu, monkeypatch)
        table.write("cli", True, [([row(stored, higher, guard)], {})])
    on(AMD, monkeypatch)
    found = [row(ratio, higher, guard)]
    measured(monkeypatch, found, found)
    assert table.check("cli") == holds


@pytest.mark.parametrize(("stored", "ratio", "holds"), [(1.5, 2.3, True), (1.5, 2.5, False), (2.3, 2.7, True)])
def test_with_a_baseline_a_cost_over_its_products_is_held_to_the_looser_of_it_and_its_target(
    results: Path, monkeypatch: pytest.MonkeyPatch, stored: float, ratio: float, holds: bool
) -> None:
    table.write("cli", True, [([row(stored, False, "target")], {})])
    found = [row(ratio, False, "target")]
    measured(monkeypatch, found, found)
    assert table.check("cli") == holds


@pytest.mark.parametrize("guard", ["any CPU", "other CPUs", "target"])
def test_the_own_baseline_goes_before_the_rest(results: Path, monkeypatch: pytest.MonkeyPatch, guard: Guard) -> None:
    on(INTEL, monkeypatch)
    table.write("cli", True, [([row(2.0, False, guard)], {})])
    on(AMD, monkeypatch)
    table.write("cli", True, [([row(3.0, False, guard)], {})])
    measured(monkeypatch, [row(3.5, False, guard)])
    assert table.check("cli")


def test_the_kind_of_a_cpu_is_its_model_and_widest_vector_unit() -> None:
    text = "processor\t: 0\nmodel name\t: {}\nflags\t\t: fpu sse2 {}\n\nprocessor\t: 1\nmodel name\t: other\n"
    assert cpu_kind(text.format("AMD EPYC", "avx avx2 bmi2")) == "AMD EPYC, AVX2"
    assert cpu_kind(text.format("AMD EPYC", "avx avx2 avx512f avx512dq")) == "AMD EPYC, AVX-512"
    assert cpu_kind(text.format("Intel(R) Xeon(R) @ 2.50GHz", "avx2 avx512f")) == "Intel(R) Xeon(R) @ 2.50GHz, AVX-512"
    assert cpu_kind("processor: 0\nFeatures: fp asimd\n").endswith(", NEON")
    assert cpu_kind("")


def test_the_bare_products_are_those_of_the_shipped_policy() -> None:
    """Else the limit would be that of another model."""
    model = load_policy(resolve("package:laptop")).model
    linear = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    assert sum(inputs * outputs for inputs, outputs in SHAPES) == linear
    assert products(8)() >= 0


def test_committed_baselines_guard_every_short_benchmark() -> None:
    for name in set(table.GUARDED):  # it is held to its targets
        assert table.stored(name, True), name
    for name in table.GUARDED:
        for cpu, entry in table.stored(name, True).items():
            guarded = [kept["name"] for kept in entry["rows"] if kept["guard"]]
            assert guarded, (name, cpu)
            steady = [kept["name"] for kept in entry["rows"] if kept["guard"] not in ("", "target")]
            assert all(entry["spread"][kept] <= 0.15 for kept in steady), (name, cpu, entry["spread"])


def test_committed_results_say_their_cpu() -> None:
    for path in table.RESULTS.glob("*.json"):
        if not path.name.startswith(("gpu_", "simulation")):
            entries = json.loads(path.read_text())
            assert entries, path
            assert all(entry["machine"]["cpu"] == cpu for cpu, entry in entries.items()), path


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
