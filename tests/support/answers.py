"""Made-up graded samples, and the answers that tables make of them."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from tepo.evaluation.statistics.answer import Answer, answers
from tepo.evaluation.statistics.samples import AVERAGE, pair_rows
from tepo.reporting.tables.build_table import RowSpec

BENCHMARKS = {"add3": "add3", "gcd": "gcd"}
ROWS = (
    RowSpec("a", "GRPO/DAPO", "grpo_dapo"),
    RowSpec("b", "TEPO-w/o. KL", "tepo_no_kl"),
    RowSpec("c", "KL(A > 0 ∧ ΔH < 0) 100% [x_y]", "tepo"),
    RowSpec("d", "Not run", "gspo"),
)


def samples(
    chances: dict[str, float], *, seeds: int = 3, problems: int = 40, per_problem: int = 4, benchmarks=("add3", "gcd")
) -> pd.DataFrame:
    """Every sample right with its row's chance, the same easy and hard problems for every row."""
    rng = np.random.default_rng(7)
    frames = []
    for benchmark in benchmarks:
        ease = rng.uniform(-0.2, 0.2, problems)
        for row, chance in chances.items():
            for seed in range(seeds):
                right = rng.random((problems, per_problem)) < np.clip(chance + ease, 0, 1)[:, None]
                problem = np.repeat([f"{benchmark}-{index}" for index in range(problems)], per_problem)
                drawn = {"problem": problem, "sample": np.tile(range(per_problem), problems), "row": row, "seed": seed}
                drawn |= {"benchmark": benchmark, "right": right.ravel().astype(int), "samples": 1}
                frames.append(pd.DataFrame(drawn))
    return pd.concat(frames, ignore_index=True)


def compare(frame: pd.DataFrame, baseline: str, on: Sequence[str] = (AVERAGE,)) -> list[Answer]:
    """Every other row against `baseline`, Holm-corrected over everything returned."""
    return answers([pair.question() for pair in pair_rows(frame, baseline, on)])
