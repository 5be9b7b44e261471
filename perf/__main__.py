"""All benchmarks in one table: ours, peer, ratio, limit.

    python -m perf [--short] [--check | --runs N | --stored] [NAME …]

Names: cli sampler update grader fused objective step limit vllm small_lm. Each runs in a process of its own, measures
both sides in turn, and what counts is the ratio, never a time. `small_lm` takes five minutes and is measured only where
it is named. Results go to perf/results/NAME.json, one entry for each kind of CPU (model and widest vector unit) with
machine and versions. `--stored` prints what is committed, each figure with its CPU, and measures nothing. `--short`
takes two minutes and leaves out what needs other environments. `--runs N` measures N times and keeps the worst of each
ratio, which is how baselines are made: its spread over the runs is kept beside it. `--check` fails where a guarded row
is beyond 1.6 times the committed baseline of its kind of CPU and stays so when it is measured once more with three
times the turns. Other rows, and all rows on a kind of CPU without a baseline, are printed alone. It writes nothing.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from perf.ratios import BenchmarkRow, Unavailable, machine
from tepo.common import interpreter

RESULTS = Path(__file__).parent / "results"
SLACK = 1.6  # how much worse than its baseline a ratio may be: one and the same host moves some by a third
TURNS, SHORT_TURNS, MORE = 7, 3, 3
BENCHMARKS = {  # the function of each: (turns, short) -> rows
    "cli": "cli_start.measure",
    "sampler": "laptop.sampler",
    "update": "laptop.update",
    "grader": "grader_speed.measure",
    "fused": "fused.measure",
    "objective": "laptop.objective",
    "limit": "laptop.limit",
    "step": "trl_step.measure",
    "vllm": "laptop.vllm",
    "small_lm": "small_lm.measure",
}
GUARDED = tuple(BENCHMARKS)[:-3]  # those with guarded rows: what `--short` runs unless names are given
UNNAMED = tuple(BENCHMARKS)[:-1]  # what is measured otherwise unless names are given


def measure(name: str, turns: int, short: bool) -> None:
    """Measure one benchmark in this process and print its rows as JSON."""
    module, function = BENCHMARKS[name].split(".")
    try:
        rows = getattr(import_module(f"perf.{module}"), function)(turns, short)
        print("\n" + json.dumps([asdict(row) for row in rows]))
    except Unavailable as missing:
        print("\n" + json.dumps(str(missing)))


def run(name: str, short: bool, more: int = 1) -> list[BenchmarkRow]:
    """Measure one benchmark in a process of its own; no rows where something is missing, which is said."""
    turns = (SHORT_TURNS if short else TURNS) * more
    command = interpreter.command("-m", "perf", name, "--turns", str(turns), *(["--short"] if short else []))
    environment = interpreter.environment() | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=RESULTS.parent.parent)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr[-4000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    if isinstance(found, str):
        print(f"{name}: not measured: {found}", flush=True)
        return []
    return [BenchmarkRow(**row) for row in found]


def path_of(name: str, short: bool) -> Path:
    """Path of a benchmark's result."""
    return RESULTS / f"{name}{'_short' if short else ''}.json"


def stored(name: str, short: bool) -> dict[str, Any]:
    """The committed results by kind of CPU, empty where there is none."""
    path = path_of(name, short)
    return json.loads(path.read_text()) if path.exists() else {}


def write(name: str, short: bool, runs: list[list[BenchmarkRow]]) -> list[BenchmarkRow]:
    """Keep the worst of each ratio over the runs, and how far they lie apart, beside the results of other kinds of CPU.
    Returns the rows kept."""
    kept, spread = [], {}
    for same in zip(*runs, strict=True):
        ratios = [row.ratio for row in same]
        kept.append(max(same, key=lambda row: row.worse(same[0].ratio)))
        spread[kept[-1].name] = max(ratios) / min(ratios) - 1
    here = machine()
    result = {"machine": here, "runs": len(runs), "rows": [asdict(row) for row in kept], "spread": spread}
    path_of(name, short).write_text(json.dumps({**stored(name, short), here["cpu"]: result}, indent=1) + "\n")
    return kept


def line(row: BenchmarkRow, note: str) -> str:
    """One line of the table."""
    bound = "" if row.target is None else f"{'>=' if row.higher_is_better else '<='} {row.target:.3g}"
    figures = f"{row.ours:10.4g} {row.peer:10.4g} {row.ratio:8.3g} {bound:>9} {'' if row.met else 'missed':7}"
    return f"{row.name:52} {row.unit:14} {figures} {note}"


def check(name: str) -> bool:
    """Compare the guarded rows of the short form with their baselines on this kind of CPU; a second, longer look at
    what seems worse. True when all hold."""
    kept = stored(name, True).get(machine()["cpu"], {"rows": []})["rows"]
    held = {row["name"]: row["ratio"] for row in kept if row["guarded"]}

    def failed(rows: list[BenchmarkRow]) -> set[str]:
        return {row.name for row in rows if row.name in held and row.worse(held[row.name]) > SLACK}

    rows = run(name, True)
    suspects = failed(rows)
    if suspects:
        print(f"{', '.join(sorted(suspects))}: beyond {SLACK} x baseline, measured again", flush=True)
        rows = run(name, True, more=MORE)
        suspects &= failed(rows)
    for row in rows:
        note = f"baseline {held[row.name]:.3g}" if row.name in held else "not compared"
        print(line(row, note + (f" BEYOND {SLACK} TIMES IT" if row.name in suspects else "")), flush=True)
    gone = held.keys() - {row.name for row in rows}
    if gone:
        print(f"no longer measured: {', '.join(sorted(gone))}", flush=True)
    return bool(rows) and not suspects and not gone


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m perf", description=__doc__, formatter_class=raw)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--short", action="store_true")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true")
    what.add_argument("--stored", action="store_true")
    what.add_argument("--runs", type=int, default=1)
    what.add_argument("--turns", type=int, help=argparse.SUPPRESS)  # of one benchmark in this process
    given = parser.parse_args()
    unknown = set(given.names) - BENCHMARKS.keys()
    if unknown:
        parser.error(f"unknown {', '.join(sorted(unknown))}; names: {', '.join(BENCHMARKS)}")
    if given.check and not given.short:
        parser.error("--check compares the short form: add --short")
    if given.turns:
        return measure(given.names[0], given.turns, given.short)
    names = given.names or (GUARDED if given.short else tuple(BENCHMARKS) if given.stored else UNNAMED)
    last = f"compared with, on {machine()['cpu']}" if given.check else "CPU"
    print(f"{'ours / peer':52} {'unit':14} {'ours':>10} {'peer':>10} {'ratio':>8} {'limit':>9} {'':7} {last}")
    if given.check:
        held = [check(name) for name in names]  # all of them, whatever the first says
        sys.exit(0 if all(held) else 1)
    for name in names:
        if given.stored:
            kept = {cpu: entry["rows"] for cpu, entry in stored(name, given.short).items()}
            shown = {cpu: [BenchmarkRow(**row) for row in rows] for cpu, rows in kept.items()}
        else:
            runs = [rows for _ in range(given.runs) if (rows := run(name, given.short))]
            shown = {machine()["cpu"]: write(name, given.short, runs)} if runs else {}
        for cpu, rows in shown.items():
            print(*(line(row, cpu) for row in rows), sep="\n", flush=True)
    return None


if __name__ == "__main__":
    main()
