"""Accuracy on validation problems while a run trains. Settings are chosen by it, never by a benchmark's test problems.

Procedural benchmarks have problems of the validation split, which no training and no test set holds. A set of problems
has those that `data.held_out` keeps from training.
"""

from dataclasses import dataclass, replace

import numpy as np

from tepo.config.schema import RunConfig
from tepo.evaluation.responses import Tools, sample_rows
from tepo.evaluation.settings import Settings
from tepo.problems.benchmarks import Benchmark, load_benchmark
from tepo.problems.problem import Problem
from tepo.training.engine import Comm

_SEED = 1  # of the generated problems, the same in every run: so runs are compared on the same ones
_HELD_OUT = "held_out"


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


def validation_sets(config: RunConfig) -> list[tuple[Benchmark, list[Problem]]]:
    """The problems to validate on, by benchmark: for generated data `train.validation_problems` for each of
    `data.benchmarks` that is generated too, else those held out of training."""
    train, data = config.train, config.data
    if data.kind == "problems":
        from tepo.problems.training_sets import load_training_problems, split_off

        assert data.problems
        loaded = load_training_problems(data.problems, exclude_contaminated=data.exclude_contaminated)
        held_out = split_off(loaded, data.held_out, data.problems)[1]
        benchmark = Benchmark(
            title="Held-out problems",
            count=len(held_out),
            samples=1,
            temperature=train.temperature,
            max_new_tokens=train.max_new_tokens,
            prompt=data.prompt,
            name=_HELD_OUT,
        )
        return [(benchmark, held_out)]
    sets = []
    for name in data.benchmarks:
        benchmark = load_benchmark(name)
        if benchmark.procedural:
            source = replace(benchmark.procedural, split="validation", seed=_SEED)
            twin = replace(benchmark, procedural=source, count=train.validation_problems)
            sets.append((twin, twin.load_problems()))
    return sets
