import contextlib
import json
import math
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from perf import __main__ as table
from perf.gpu.record import Figure, record
from perf.ratios import BenchmarkRow, beside, in_turn, linear_shapes, products
from tepo.policy.model.load_policy import load_policy
from tepo.policy.model.model_location import resolve
from tests.support.commands import python

INTEL, AMD = "Intel Xeon, AVX-512", "AMD EPYC, AVX2"


def row(ratio: float, higher: bool = True) -> BenchmarkRow:
    return BenchmarkRow("a", "s", ratio, 1.0, ratio, 2.0, higher, True)


OWN = {AMD: row(4.0)}


@pytest.mark.parametrize(
    ("stored", "looks", "holds"),
    [
        (OWN, [row(2.4), row(2.4)], False),  # beyond 1.6 times, twice
        (OWN, [row(2.4), row(2.6)], True),
        ({AMD: row(4.0, higher=False)}, [row(6.5, higher=False)] * 2, False),
        (OWN, [None], False),  # a guarded row that is gone
        ({INTEL: row(9.0), AMD: row(3.0)}, [row(1.9)], True),  # another CPU's baseline does not count
    ],
)
def test_what_a_row_is_held_to(
    stored: dict[str, BenchmarkRow], looks: list[Any], holds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, left = [], [[look] if look else [] for look in looks]

    def run(name: str, short: bool, more: int = 1) -> list[BenchmarkRow]:
        asked.append(more)
        return left.pop(0)

    monkeypatch.setattr(table, "run", run)
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    for cpu, kept in stored.items():  # the last one is that of this machine
        monkeypatch.setattr(table, "machine", lambda cpu=cpu: {"cpu": cpu})
        table.write("cli", True, [[kept]])
    assert table.check("cli") == holds
    assert asked == [1, table.MORE][: len(looks)]  # a second look where the first is worse


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


ROOT = Path(__file__).parents[3]
NAMES = [
    pytest.param(name, marks=pytest.mark.vllm) if name == "vllm" else name
    for name in table.BENCHMARKS
    if name not in table.GUARDED
]


@pytest.mark.disaster
@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_measures_both_sides(name: str) -> None:
    if name in ("step", "small_lm") and find_spec("trl") is None:
        pytest.skip("needs trl")
    known = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "TEPO_PEERS_PYTHON": sys.executable}
    done = python("-m", "perf", name, "--turns", "1", "--short", cwd=ROOT, seconds=3600, **known)
    rows = json.loads(done.stdout.splitlines()[-1])
    if name in ("vllm", "small_lm") and isinstance(rows, str):
        pytest.skip(rows)
    assert rows
    assert all(min(row["ours"], row["peer"], row["ratio"]) > 0 for row in rows), rows


@pytest.mark.parametrize(
    ("value", "error", "state", "note"),
    [
        (1.0, None, "works", None),
        (3.0, None, "wrong", None),  # beyond the limit of 2
        (math.nan, None, "wrong", None),
        (1.0, ImportError("No module named 'deepspeed'"), "missing", "No module named 'deepspeed'"),
        (1.0, ValueError("illegal memory access\nsecond line"), "failed", "ValueError: illegal memory access"),
    ],
)
def test_how_a_part_ended_is_recorded_with_what_it_found(
    value: float, error: Exception | None, state: str, note: str | None, tmp_path: Path
) -> None:
    def measure() -> Iterator[Figure]:
        yield Figure("first", "s", value, 2.0, "<=")
        if error:
            raise error

    with contextlib.suppress(ValueError):  # it goes on, for the log
        record("part", measure, tmp_path / "part.json")
    found = json.loads((tmp_path / "part.json").read_text())
    assert (found["state"], len(found["figures"])) == (state, 1)
    assert note is None or found["note"] == note
