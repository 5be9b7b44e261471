"""Accuracy on validation problems while a run trains. Settings are chosen by it, never by a benchmark's test problems.

Procedural benchmarks have problems of the validation split, which no training and no test set holds. A set of problems
has those that `data.held_out` keeps from training.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tepo.config.run_config import RunConfig
from tepo.evaluation.responses import Tools, sample_rows
from tepo.evaluation.settings import Settings
from tepo.sampling.engine_ranks import EngineOfRank
from tepo.store.evaluation_result import AVERAGE
from tepo.training.distributed.comm import Comm
from tepo.training.validation_problems import START, validation_sets

Measured = dict[str, Any]


@dataclass
class Validation:
    """What is measured, and with what. comm: None in a single process."""

    config: RunConfig
    tools: Tools
    comm: Comm | None

    def __post_init__(self) -> None:
        """Raises UserError for a benchmark or a task that does not exist, or a set with fewer problems."""
        self.sets = validation_sets(self.config)

    def measure(self) -> Measured:
        """`val-core/NAME/acc/mean@n` of each set under the sampler's present weights, and of their mean; verl's names.
        `val-aux/NAME/right@n`: how many of the n responses to each problem are right, in the order of the problems.
        Response i of a problem has the same key at every step. Each engine answers its part of the problems."""
        config, shares, counts = self.config, {}, {}
        settings = Settings(wrap=config.model.wrap, thinking=config.model.thinking)
        engine = EngineOfRank.of(self.comm, config.sampler.tensor_parallel)
        for benchmark, problems in self.sets:
            own = engine.share(problems)
            rows = sample_rows(benchmark, own, self.tools, settings) if own else []
            right = np.reshape([row["correct"] for row in rows], (len(own), benchmark.samples)).sum(axis=1).tolist()
            parts = [right] if self.comm is None else self.comm.all_gather_object(right)
            of_all = [0] * len(problems)
            for index, part in enumerate(parts[:: len(parts) // engine.count]):  # a rank of each engine
                of_all[index :: engine.count] = part
            shares[f"val-core/{benchmark.name}/acc/mean@{benchmark.samples}"] = float(
                sum(of_all) / (len(problems) * benchmark.samples)
            )
            counts[f"val-aux/{benchmark.name}/right@{benchmark.samples}"] = of_all
        return {**shares, AVERAGE: float(np.mean(list(shares.values()))), **counts}

    def measure_start(self) -> Measured:
        """`measure` of the untrained policy, under names that begin with START."""
        return {f"{START}{name}": value for name, value in self.measure().items()}
