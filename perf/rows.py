"""Every trained row of a study:
final accuracy, gain over the untrained base, entropy, clip fraction, CPU seconds a step.

    python -m perf.rows [--study objectives] [--store runs] [--seeds 0,1,2]

Reads the store alone (`tepo ablate objectives` fills it, `tepo base` measures the base). Accuracy is the mean over all
samples of the seven benchmarks, in percent, with the spread (lowest to highest) over seeds; entropy and clip fraction
are those of the last five steps.
"""

import argparse
from pathlib import Path
from statistics import mean, median

from tepo.store.evaluation_result import load_result
from tepo.store.run_folder import RunFolder
from tepo.studies.plan import Unit, make_plan
from tepo.studies.study import load_study


def accuracy(run: RunFolder, benchmarks: list[str]) -> float | None:
    """Percent over all samples of all benchmarks, or None when one was not measured."""
    results = [load_result(run.evaluation(name)) for name in benchmarks]
    found = [result for result in results if result is not None]
    if len(found) < len(benchmarks):
        return None
    return (
        100
        * sum(result.accuracy * result.problems * result.samples for result in found)
        / sum(result.problems * result.samples for result in found)
    )


def line(label: str, units: list[Unit], base: float | None) -> str:
    """One row of the table, over the seeds that were run."""
    scores = [score for unit in units if (score := accuracy(unit.run, unit.config.data.benchmarks)) is not None]
    runs = [unit.run.metrics() for unit in units if unit.trained()]
    if not scores or not runs:
        return f"| {label} | – | – | – | – | – | 0 |"
    last = [row for rows in runs for row in rows[-5:]]
    fractions = [row.get("actor/clipped_tokens", row.get("actor/pg_clipfrac")) for row in last]
    clipped = [fraction for fraction in fractions if fraction is not None]
    gain = "–" if base is None else f"{mean(scores) - base:+.1f}"
    seconds = median(row["perf/cpu_s"] for rows in runs for row in rows)
    return (
        f"| {label} | {mean(scores):.1f} ({min(scores):.1f} – {max(scores):.1f}) | {gain} "
        f"| {mean(row['actor/entropy'] for row in last):.3f} "
        f"| {f'{100 * mean(clipped):.2f}' if clipped else '–'} | {seconds:.2f} | {len(scores)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", default="objectives")
    parser.add_argument("--store", type=Path, default=Path("runs"))
    parser.add_argument("--seeds", default="0,1,2")
    given = parser.parse_args()
    study = load_study(given.study)
    units = make_plan(study, "laptop", store=given.store, seeds=[int(seed) for seed in given.seeds.split(",")])
    base = accuracy(RunFolder.of_base(units[0].config), units[0].config.data.benchmarks)
    print(f"base: {'not measured' if base is None else f'{base:.1f}%'}; {units[0].config.train.steps} steps\n")
    print(
        "| row | accuracy % (lowest – highest seed) | gain | entropy | clipped % | CPU s a step | seeds |\n"
        "|---|---|---|---|---|---|---|"
    )
    for row in study.rows:
        print(line(row.label, [unit for unit in units if unit.row.label == row.label], base))


if __name__ == "__main__":
    main()
