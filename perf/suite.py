"""The benchmarks as rows of one table, each measured in a process of its own:
python -m perf.suite NAME TURNS [--short] prints JSON."""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any


@dataclass(frozen=True)
class BenchmarkRow:
    """One line: our figure and the peer's in `unit`, their ratio and the target it is held to, if any.

    `guarded`: CI compares the ratio of the short form with the committed baseline of the same kind of CPU.
    """

    name: str
    unit: str
    ours: float
    peer: float
    ratio: float
    target: float | None
    higher_is_better: bool = False
    guarded: bool = False

    @property
    def met(self) -> bool:
        if self.target is None:
            return True
        return self.ratio >= self.target if self.higher_is_better else self.ratio <= self.target

    def worse(self, baseline: float) -> float:
        """Factor by which the ratio is worse than the baseline, 1 or less when it is not."""
        return baseline / self.ratio if self.higher_is_better else self.ratio / baseline


class Unavailable(Exception):
    """Package or program that a benchmark misses, in words."""


Found = tuple[list[BenchmarkRow], dict[str, Any]]


def cli(turns: int, short: bool) -> Found:
    start = import_module("perf.cli_start")
    found, others = start.measure(rounds=3 * turns), start.measure_commands(rounds=turns)
    starts = [("--help / import typer", found, 1.5)]
    for words, row in others.items():
        code, limit = start.COMMANDS[words]
        starts.append((f"{words.partition(' --model')[0]} / {code}", row, limit))
    return [
        BenchmarkRow(f"tepo {name}", "CPU s", row["ours_s"], row["peer_s"], row["ratio"], target, guarded=True)
        for name, row, target in starts
    ], {"help": found, **others}


def sampler(turns: int, short: bool) -> Found:
    found = import_module("perf.sampler").measure(turns=3 * turns)
    rates = found["tepo"], max(found["generate_dynamic"], found["generate_static"]), found["ratio"]
    costs = 1e6 / found["tepo"], 1e6 / found["bare_products"], found["ratio_products"]
    return [
        BenchmarkRow("sampler / transformers generate()", "tokens/CPU s", *rates, 4.0, True, True),
        BenchmarkRow("sampler / its bare matrix products", "CPU us a token", *costs, 3.5, guarded=True),
    ], found


def vllm(turns: int, short: bool) -> Found:
    if find_spec("vllm") is None:
        raise Unavailable("vLLM is not installed (make engines)")
    found = import_module("perf.vllm_sampler").measure(turns=turns)
    return [
        BenchmarkRow("sampler / vLLM on CPU", "tokens/CPU s", found["tepo"], found["vllm"], found["ratio"], 2.0, True)
    ], found


def update(turns: int, short: bool) -> Found:
    found = import_module("perf.update_packing").measure(turns=3 * turns)
    seconds, share = found["seconds"], found["trained_share"]
    rates = found["tokens"] / seconds["packed"], found["tokens"] / seconds["padded"], found["ratio"]
    costs = seconds["packed"], seconds["bare products"], found["ratio_products"]
    return [
        BenchmarkRow("update, packed / right-padded", "tokens/CPU s", *rates, 1.7, True, True),
        BenchmarkRow("update, trained / pushed tokens", "share", share, 1.0, share, 0.95, True, True),
        BenchmarkRow("update / its bare matrix products", "CPU s", *costs, 2.5, guarded=True),
    ], found


def grader(turns: int, short: bool) -> Found:
    found = import_module("perf.grader_throughput").measure(count=60 if short else 300, groups=32 if short else 64)
    targets, rows = {"rollout": 5.0, "fresh": 1.0, "wrong": 1.0}, []
    for name, row in found.items():
        figures = row["tepo_per_core_second"], row["math_verify_per_core_second"], row["ratio"], targets[name]
        title = f"grader / math-verify, {name}"
        rows.append(BenchmarkRow(title, "answers/core s", *figures, True, guarded=name == "fresh"))
    return rows, found


def step(turns: int, short: bool) -> Found:
    trl = import_module("perf.trl_step")
    if trl.peers_python() is None:
        raise Unavailable("no environment of the peers (make peers, or TEPO_PEERS_PYTHON)")
    found = trl.measure(turns=turns, tuned=not short, short=short)
    spent = {name: row["cpu_s"] for name, row in found["rows"].items()}
    rows = []
    for name, key, target in (("trl", "ratio", 4.0), ("trl, tuned", "ratio_tuned", None)):
        if name in spent:
            title = f"TRL's RL step ({name}) / ours, GRPO/DAPO"
            rows.append(BenchmarkRow(title, "CPU s", spent["tepo"], spent[name], found[key], target, True))
    return rows, found


def limit(turns: int, short: bool) -> Found:
    found = import_module("perf.rl_step").measure(steps=turns + 1)
    steps = found["rows"]
    pairs = [
        (f"RL step / its bare matrix products, {name}", row["cpu_s"], row["bare_products_s"], 2.5)
        for name, row in steps.items()
    ]
    pairs.append(("TEPO's RL step / GRPO/DAPO's", steps["tepo"]["cpu_s"], steps["grpo_dapo"]["cpu_s"], 1.10))
    return [
        BenchmarkRow(title, "CPU s", ours, other, ours / other, target, guarded=True)
        for title, ours, other, target in pairs
    ], found


def objective(turns: int, short: bool) -> Found:
    found = import_module("perf.objective_loss").measure(turns)
    rows = []
    for name, row in found["rows"].items():
        figures = row["ms"], row["by_hand_ms"], row["ratio"]
        rows.append(BenchmarkRow(f"loss of {name} / a clipped loss by hand", "CPU ms", *figures, None, guarded=True))
    return rows, found


def growth(turns: int, short: bool) -> Found:
    found = import_module("perf.cost_growth").measure(turns=max(1, turns // 2), short=short)
    worst = max(found["rows"], key=lambda row: abs(row["deviation"]))
    title, seconds = "cost growth, furthest step from the model", (worst["step_s"], worst["model_s"])
    return [BenchmarkRow(title, "CPU s", *seconds, found["worst"], 0.15)], found


JOBS = (
    ("bare products", "naive", "tepo", "trl", "liger, log-prob alone"),
    ("naive with entropy gradient", "tepo with entropy gradient", "trl with entropy gradient"),
    ("tepo", "torch.compile", "liger, GRPO loss"),
)  # of the fused op; what is compared is measured in one job


def fused(turns: int, short: bool) -> Found:
    peers = import_module("perf.trl_step").peers_python()
    jobs = (("naive", "tepo"),) if short else JOBS
    runs = [
        import_module("perf.fused_logprob").measure(
            short, max(1, turns // 3) if short else 1, peers and str(peers), list(job)
        )
        for job in jobs
    ]
    return [row for found in runs for row in fused_rows(found)], {"jobs": runs}


def fused_rows(found: dict[str, Any]) -> list[BenchmarkRow]:
    """Time and memory of ours over those of each other variant that does the same job."""
    rows, full = [], found["tokens"] >= 4096
    targets: dict[str, tuple[float | None, float | None]] = {
        "naive": (1.05, 0.1),
        "bare products": (1.2, None),
        "naive with entropy gradient": (1.05, 0.1),
        "torch.compile": (None, None),
    }
    for peer, other in found["rows"].items():
        ours = found["rows"].get("tepo with entropy gradient" if peer.endswith("with entropy gradient") else "tepo")
        if peer.startswith("tepo") or ours is None:
            continue
        time, memory = targets.get(peer, (1.0, 1.0)) if full else (None, None)  # the targets are for the full size
        for kind, unit, key, target in (("time", "CPU s", "cpu_s", time), ("peak memory", "MiB", "peak_mib", memory)):
            figures = ours[key], other[key], ours[key] / other[key]
            rows.append(BenchmarkRow(f"fused op / {peer}, {kind}", unit, *figures, target, guarded=not full))
    return rows


BENCHMARKS: dict[str, Callable[[int, bool], Found]] = {
    one.__name__: one for one in (cli, sampler, update, grader, fused, objective, step, limit, growth, vllm)
}
# those with guarded rows: what `--short` runs unless names are given
GUARDED = ("cli", "sampler", "update", "grader", "fused", "objective", "limit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=BENCHMARKS)
    parser.add_argument("turns", type=int)
    parser.add_argument("--short", action="store_true")
    given = parser.parse_args()
    try:
        rows, detail = BENCHMARKS[given.name](given.turns, given.short)
    except Unavailable as missing:
        print("\n" + json.dumps({"unavailable": str(missing)}))
        return
    print("\n" + json.dumps({"rows": [asdict(row) for row in rows], "detail": detail}, default=str))


if __name__ == "__main__":
    main()
