"""One RL step at laptop scale (sample, grade, 8 updates on the kept groups):
CPU seconds of one thread, and where they go.

    OMP_NUM_THREADS=1 python -m perf.rl_step [--steps 6] [--objectives grpo_dapo,tepo]

Trains from the shipped base in scratch stores; medians over the steps after the first. `bare matrix products` is the
time of the matrix products that the updates cannot avoid (three products for each linear layer and trained token),
measured in the same process, as the limit beside it. Targets, on any CPU: a step costs at most 2.5 times these
products, and TEPO's at most 1.10 times GRPO/DAPO's.
"""

import argparse
import tempfile
from statistics import median
from typing import Any

import torch

from perf.products import products
from tepo.config.compose import compose
from tepo.store.run_folder import RunFolder
from tepo.training.loop import train

UPDATES = 8


def measure(steps: int = 6, objectives: tuple[str, ...] = ("grpo_dapo", "tepo")) -> dict[str, Any]:
    """Medians for each objective, over two rounds in which the objectives take turns: what a neighbour on the machine
    takes for a while falls on all of them."""
    torch.set_num_threads(1)
    keys = {
        "cpu_s": "perf/cpu_s",
        "sampling_s": "timing_s/gen",
        "old_log_prob_s": "timing_s/old_log_prob",
        "updates_s": "timing_s/update_actor",
        "grading_s": "timing_s/reward",
        "groups": "rollout/groups_kept",
        "trained_tokens": "perf/trained_tokens",
    }
    metrics: dict[str, list[dict[str, Any]]] = {name: [] for name in objectives}
    bare: dict[str, list[float]] = {name: [] for name in objectives}
    for _ in range(2):
        for name in objectives:
            with tempfile.TemporaryDirectory() as store:
                config = compose([f"objective={name}", f"train.steps={steps}", f"store={store}"])
                train(config)
                measured = RunFolder.of(config).metrics()[1:]
            metrics[name] += measured
            tokens = median(row["perf/trained_tokens"] for row in measured) / (UPDATES / config.train.epochs)
            once = products(int(tokens))
            bare[name] += [UPDATES * once() for _ in range(15)]
    rows = {
        name: {key: median(row.get(metric, 0.0) for row in metrics[name]) for key, metric in keys.items()}
        | {"bare_products_s": median(bare[name])}
        for name in objectives
    }
    return {"name": "RL step at laptop scale", "rows": rows}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--objectives", default="grpo_dapo,tepo")
    given = parser.parse_args()
    for name, row in measure(given.steps, tuple(given.objectives.split(",")))["rows"].items():
        print(f"{name:16} " + "  ".join(f"{key} {value:.3g}" for key, value in row.items()))
