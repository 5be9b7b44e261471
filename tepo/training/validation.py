"""Accuracy on validation problems while a run trains. Settings are chosen by it, never by a benchmark's test problems.

Procedural benchmarks have problems of the validation split, which no training and no test set holds. A set of problems
has those that `data.held_out` keeps from training.
"""

from dataclasses import dataclass

import numpy as np

from tepo.config.schema import RunConfig
from tepo.evaluation.responses import Tools, sample_rows
from tepo.evaluation.settings import Settings
from tepo.training.engine import Comm
from tepo.training.validation_problems import validation_sets


@dataclass
class Validation:
    """What is measured, and with what. comm: None in a single process."""

    config: RunConfig
    tools: Tools
    comm: Comm | None

    def __post_init__(self) -> None:
        """Raises UserError for a benchmark or a task that does not exist, or a set with fewer problems."""
        self.sets = validation_sets(self.config)

    def measure(self) -> dict[str, float]:
        """`val-core/NAME/acc/mean@n` of each set under the sampler's present weights, and of their mean; verl's names.
        Response i of a problem is drawn with the same key at every step. Each rank answers its part of the problems."""
        config, shares = self.config, {}
        settings = Settings(wrap=config.model.wrap, thinking=config.model.thinking)
        ranks = slice(None) if self.comm is None else slice(self.comm.rank, None, self.comm.world_size)
        for benchmark, problems in self.sets:
            own = problems[ranks]
            rows = sample_rows(benchmark, own, self.tools, settings) if own else []
            verdicts = [row["correct"] for row in rows]
            parts = [verdicts] if self.comm is None else self.comm.all_gather_object(verdicts)
            shares[f"{benchmark.name}/acc/mean@{benchmark.samples}"] = float(
                np.mean([v for part in parts for v in part])
            )
        return {f"val-core/{name}": share for name, share in shares.items()} | {
            "val-core/average": float(np.mean(list(shares.values())))
        }
