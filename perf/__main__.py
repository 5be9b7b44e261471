"""All benchmarks in one table: ours, peer, ratio, limit.

    python -m perf [--short] [--check] [NAME …]     names: cli sampler update step fused

Each measures both sides in turn in one run; ratios are what counts, never absolute times. Results go to
perf/results/NAME.json with machine and versions. `--check` compares with the committed baseline there and fails when a
ratio got worse by more than 20%; it writes nothing.
"""

import argparse
import importlib
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
SLACK = 1.2


@dataclass(frozen=True)
class Ratio:
    """One line: `value` is better when higher, or lower, and has a target."""

    name: str
    value: float
    higher_is_better: bool
    target: float

    @property
    def met(self) -> bool:
        return self.value >= self.target if self.higher_is_better else self.value <= self.target

    def worse_than(self, baseline: float) -> bool:
        return self.value * SLACK < baseline if self.higher_is_better else self.value > baseline * SLACK


def cli(short: bool) -> tuple[dict[str, Any], list[Ratio]]:
    found = _module("cli_start").measure(rounds=5 if short else 9)
    return found, [Ratio("tepo --help / import typer, CPU time", found["ratio"], False, 1.5)]


def sampler(short: bool) -> tuple[dict[str, Any], list[Ratio]]:
    found = _module("sampler").measure(turns=3 if short else 7)
    return found, [Ratio("sampler / generate(), tokens per CPU second", found["ratio"], True, 3.0)]


def update(short: bool) -> tuple[dict[str, Any], list[Ratio]]:
    found = _module("update_packing").measure(turns=5 if short else 15)
    return found, [Ratio("packed / padded update, tokens per CPU second", found["ratio"], True, 1.7), Ratio("trained / pushed tokens", found["trained_share"], True, 0.95)]


def step(short: bool) -> tuple[dict[str, Any], list[Ratio]]:
    found = _module("rl_step").measure(steps=3 if short else 6)
    rows = found["rows"]
    return found, [Ratio(f"RL step / its bare matrix products, {name}", row["cpu_s"] / row["bare_products_s"], False, 1.0 / row["bare_products_s"]) for name, row in rows.items()]


def fused(short: bool) -> tuple[dict[str, Any], list[Ratio]]:
    found = _module("fused_logprob").measure(short=short)
    names = {"time_to_naive": (1.05, "CPU time / naive"), "time_to_bare": (1.2, "CPU time / bare products"), "peak_to_naive": (0.1, "peak memory / naive")}
    return found, [Ratio(f"fused log-prob and entropy, {label}", found[key], False, target) for key, (target, label) in names.items()]


BENCHMARKS: dict[str, Callable[[bool], tuple[dict[str, Any], list[Ratio]]]] = {"cli": cli, "sampler": sampler, "update": update, "step": step, "fused": fused}


def _module(name: str) -> Any:
    return importlib.import_module(f"perf.{name}")


def machine() -> dict[str, str]:
    """Where a result comes from."""
    model = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), platform.processor())
    return {"cpu": model, "cores": str(os.cpu_count()), "python": platform.python_version(), **{name: version(name) for name in ("torch", "transformers")}}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    unknown = set(given.names) - BENCHMARKS.keys()
    if unknown:
        parser.error(f"unknown {', '.join(sorted(unknown))}; names: {', '.join(BENCHMARKS)}")
    failed = False
    print(f"{'ratio':58} {'measured':>9} {'target':>9}   baseline")
    for name in given.names or BENCHMARKS:
        detail, ratios = BENCHMARKS[name](given.short)
        path = RESULTS / f"{name}{'_short' if given.short else ''}.json"
        baseline = json.loads(path.read_text())["ratios"] if path.exists() else {}
        for ratio in ratios:
            before = baseline.get(ratio.name)
            slower = given.check and before is not None and ratio.worse_than(before)
            failed |= slower
            bound = ">=" if ratio.higher_is_better else "<="
            note = "" if before is None else f"{before:.3g}{'  WORSE BY OVER 20%' if slower else ''}"
            print(f"{ratio.name:58} {ratio.value:9.3g} {bound} {ratio.target:<6.3g} {'' if ratio.met else 'missed':7} {note}", flush=True)
        if not given.check:
            RESULTS.mkdir(exist_ok=True)
            path.write_text(json.dumps({"machine": machine(), "ratios": {ratio.name: ratio.value for ratio in ratios}, "detail": detail}, indent=1, default=str) + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
