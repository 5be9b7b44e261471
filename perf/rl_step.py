"""One RL step at laptop scale (sample, grade, 8 updates on the kept groups):
CPU seconds of one thread, and where they go.

    OMP_NUM_THREADS=1 python -m perf.rl_step [--steps 6] [--objectives grpo_dapo,tepo]

Trains from the shipped base in a scratch store; medians over the steps after the first. `bare matrix products` is the
time of the matrix products that the updates cannot avoid (three products for each linear layer and trained token),
measured in the same process, as the limit beside it. Target: at most 1.0 CPU second a step (the prototype: 0.85-0.96).
"""

import argparse
import tempfile
import time
from statistics import median
from typing import Any

import torch

from tepo.config.compose import compose
from tepo.training.loop import train
from tepo.training.run_folder import RunFolder

UPDATES = 8


def products(tokens: int, turns: int = 5) -> float:
    """CPU seconds of the products of one forward and backward over `tokens` tokens of the laptop policy."""
    shapes = [(96, 96 + 2 * 32), (96, 96), (96, 512), (256, 96)] * 2 + [(96, 42)]
    cases = [
        (torch.randn(tokens, rows), torch.randn(rows, columns), torch.randn(tokens, columns))
        for rows, columns in shapes
    ]
    spent = []
    for _ in range(turns):
        started = time.process_time()
        for left, weight, gradient in cases:
            _ = left @ weight, gradient @ weight.T, left.T @ gradient
        spent.append(time.process_time() - started)
    return median(spent)


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
            rows[name]["bare_products_s"] = UPDATES * products(int(trained))
    return {"name": "RL step at laptop scale", "rows": rows, "target": "cpu_s <= 1.0"}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--objectives", default="grpo_dapo,tepo")
    given = parser.parse_args()
    for name, row in measure(given.steps, tuple(given.objectives.split(",")))["rows"].items():
        print(f"{name:16} " + "  ".join(f"{key} {value:.3g}" for key, value in row.items()))
