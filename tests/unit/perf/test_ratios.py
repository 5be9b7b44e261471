import json
from pathlib import Path
from typing import Any

import pytest
import torch

from perf import __main__ as table
from perf.ratios import BenchmarkRow, beside, cpu_kind, in_turn, linear_shapes, products
from tepo.policy.model.load_policy import load_policy
from tepo.policy.model.model_location import resolve

INTEL, AMD, ARM = "Intel Xeon, AVX-512", "AMD EPYC, AVX2", "Graviton, NEON"


def row(ratio: float, higher: bool = True, guarded: bool = True, name: str = "a") -> BenchmarkRow:
    return BenchmarkRow(name, "s", ratio, 1.0, ratio, 2.0, higher, guarded)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    return tmp_path


def on(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "machine", lambda: {"cpu": cpu})


def measured(monkeypatch: pytest.MonkeyPatch, *looks: list[BenchmarkRow]) -> list[int]:
    """Let the benchmarks find these rows, one look after the other.
    Returns the turns' multipliers, filled as they are asked for."""
    asked, left = [], list(looks)

    def run(name: str, short: bool, more: int = 1) -> list[BenchmarkRow]:
        asked.append(more)
        return left.pop(0)

    monkeypatch.setattr(table, "run", run)
    return asked


def test_ratio_directions() -> None:
    assert row(3.0).met
    assert not row(3.0, higher=False).met
    assert row(3.0).worse(4.5) == pytest.approx(1.5)
    assert row(3.0, higher=False).worse(2.0) == pytest.approx(1.5)


OWN = {AMD: row(4.0)}


@pytest.mark.parametrize(
    ("stored", "looks", "holds"),
    [
        (OWN, [row(2.4), row(2.4)], False),  # beyond 1.6 times, twice
        (OWN, [row(2.4), row(2.6)], True),
        (OWN, [row(2.6)], True),
        ({AMD: row(4.0, higher=False)}, [row(6.3, higher=False)], True),
        ({AMD: row(4.0, higher=False)}, [row(6.5, higher=False)] * 2, False),
        (OWN, [None], False),  # a guarded row that is gone
        ({AMD: row(4.0, guarded=False)}, [row(1.0, guarded=False)], True),
        ({INTEL: row(9.0)}, [row(0.1)], True),  # another CPU's baseline does not count
        ({INTEL: row(9.0), AMD: row(3.0)}, [row(1.9)], True),
        ({INTEL: row(9.0), AMD: row(3.0)}, [row(1.8)] * 2, False),
    ],
)
def test_what_a_row_is_held_to(
    stored: dict[str, BenchmarkRow], looks: list[Any], holds: bool, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cpu, kept in stored.items():
        on(cpu, monkeypatch)
        table.write("cli", True, [[kept]])
    on(AMD, monkeypatch)
    asked = measured(monkeypatch, *([look] if look else [] for look in looks))
    assert table.check("cli") == holds
    assert asked == [1, table.MORE][: len(looks)]  # a second look where the first is worse


@pytest.mark.parametrize(("higher", "worst"), [(True, 3.0), (False, 4.0)])
def test_the_worst_run_is_kept_with_the_spread(results: Path, higher: bool, worst: float) -> None:
    table.write("cli", True, [[row(ratio, higher)] for ratio in (3.5, 3.0, 4.0)])
    (entry,) = json.loads((results / "cli_short.json").read_text()).values()
    assert [BenchmarkRow(**kept).ratio for kept in entry["rows"]] == [worst]
    assert entry["spread"]["a"] == pytest.approx(1 / 3)


def test_each_kind_of_cpu_keeps_its_own_results_and_they_are_printed_with_it(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for cpu, ratio in ((INTEL, 4.0), (AMD, 3.0), (AMD, 2.0)):
        on(cpu, monkeypatch)
        table.write("cli", True, [[row(ratio), row(ratio, name="b")]])
    kept = {cpu: [kept["ratio"] for kept in entry["rows"]] for cpu, entry in table.stored("cli", True).items()}
    assert kept == {INTEL: [4.0] * 2, AMD: [2.0] * 2}
    monkeypatch.setattr("sys.argv", ["perf", "--stored", "--short", "cli"])
    table.main()
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [[cpu for cpu in (INTEL, AMD) if line.endswith(cpu)] for line in lines] == [[INTEL]] * 2 + [[AMD]] * 2


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
    assert sum(inputs * outputs for inputs, outputs in linear_shapes(model.config)) == linear
    products(model.config, 8)()


def test_committed_results_say_their_cpu_and_guard_every_short_benchmark() -> None:
    for path in table.RESULTS.glob("*.json"):
        if not path.name.startswith(("gpu_", "house")):
            entries = json.loads(path.read_text())
            assert all(entry["machine"]["cpu"] == cpu for cpu, entry in entries.items()), path
    for name in table.GUARDED:
        entries = table.stored(name, True)
        assert entries, name
        assert all(any(kept["guarded"] for kept in entry["rows"]) for entry in entries.values()), name


def test_sides_take_turns_and_the_ratio_is_the_median_of_pairs() -> None:
    asked: list[tuple[str, int]] = []

    def side(name: str, values: list[float]):
        return lambda turn: (asked.append((name, turn)), values[turn])[1]

    found = in_turn({"ours": side("ours", [9, 1, 2, 8]), "peer": side("peer", [9, 2, 2, 1])}, 3)
    assert asked == [(name, turn) for turn in range(4) for name in ("ours", "peer")]
    assert found == {"ours": [1, 2, 8], "peer": [2, 2, 1]}  # without the first turn, which warms up
    assert beside("a", "s", found["ours"], found["peer"], 1.0) == BenchmarkRow("a", "s", 2, 2, 1.0, 1.0)
