"""One RL step at laptop scale (sample, grade, 8 updates on the kept groups):
CPU seconds of one thread, and where they go.

    OMP_NUM_THREADS=1 python -m perf.rl_step [--steps 6] [--objectives grpo_dapo,tepo]

Trains from the shipped base in a scratch store; medians over the steps after the first. `bare matrix products` is the
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
    """Medians for each objective."""
    torch.set_num_threads(1)
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as store:
        for name in objectives:
            config = compose([f"objective={name}", f"train.steps={steps}", f"store={store}"])
            train(config)
            metrics = RunFolder.of(config).metrics()[1:]
            keys = {
                "cpu_s": "perf/cpu_s",
                "sampling_s": "timing_s/gen",
                "old_log_prob_s": "timing_s/old_log_prob",
                "updates_s": "timing_s/update_actor",
                "grading_s": "timing_s/reward",
            }
            rows[name] = {key: median(row.get(metric, 0.0) for row in metrics) for key, metric in keys.items()}
            trained = median(row["perf/trained_tokens"] for row in metrics) / (UPDATES / config.train.epochs)
            rows[name] |= {
                "groups": median(row["rollout/groups_kept"] for row in metrics),
                "trained_tokens": median(row["perf/trained_tokens"] for row in metrics),
            }
            bare = products(int(trained))
            rows[name]["bare_products_s"] = UPDATES * median(bare() for _ in range(15))
    return {"name": "RL step at laptop scale", "rows": rows}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--objectives", default="grpo_dapo,tepo")
    given = parser.parse_args()
    for name, row in measure(given.steps, tuple(given.objectives.split(",")))["rows"].items():
        print(f"{name:16} " + "  ".join(f"{key} {value:.3g}" for key, value in row.items()))
