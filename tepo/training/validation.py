"""Validation: accuracy on problems of their own while a run trains. Settings are chosen by it, never by a benchmark's
test problems.

Procedural benchmarks have problems of the validation split, which no training and no test set holds. A set of problems
has those that `data.held_out` keeps from training. Which they are is told without torch: a table tells by them whether
a validation is of today's.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tepo.common.errors import Diverged
from tepo.config.run_config import RunConfig, chosen
from tepo.problems.benchmarks import Benchmark, load_benchmark
from tepo.problems.problem import Problem
from tepo.store.evaluation_result import AVERAGE

if TYPE_CHECKING:
    from tepo.evaluation.responses import Tools
    from tepo.training.distributed.comm import Comm

Measured = dict[str, Any]
START = "start/"  # before the names of what was measured on the untrained policy; in the row of the first step
_HELD_OUT = "held_out"


def validation_sets(config: RunConfig) -> list[tuple[Benchmark, list[Problem]]]:
    """The problems to validate on, by benchmark: for generated data `train.validation_problems` for each of
    `data.benchmarks` that is generated too, else those held out of training."""
    train, data = config.train, config.data
    if data.kind == "problems":
        from tepo.problems.training_sets import load_training_problems, split_off

        assert data.problems
        loaded = load_training_problems(
            data.problems, exclude_contaminated=data.exclude_contaminated, fields=data.fields, columns=data.columns
        )
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
            twin = benchmark.validation(train.validation_problems)
            sets.append((twin, twin.load_problems()))
    return sets


@dataclass
class Validation:
    """Measures validation problems with a sampler and a grader. comm: None in a single process."""

    config: RunConfig
    tools: "Tools"
    comm: "Comm | None"

    def __post_init__(self) -> None:
        """Raises UserError for a benchmark or a task that does not exist, a set with fewer problems, and prompts that
        cannot be asked."""
        from tepo.evaluation.responses import ask
        from tepo.evaluation.settings import Settings

        self.sets = validation_sets(self.config)
        self.settings = Settings(wrap=self.config.model.wrap, thinking=self.config.model.thinking)
        for benchmark, problems in self.sets:
            ask(benchmark, problems, self.tools.tokenizer, self.settings)

    def measure(self) -> Measured:
        """Return `val-core/NAME/acc/mean@n` of each set under the sampler's present weights, and of their mean; verl's
        names. `val-aux/NAME/right@n`: how many of the n responses to each problem are right, in the order of the
        problems. Response i of a problem has the same key at every step. Each engine answers its part of the
        problems. Raises Diverged, on all ranks, where the policy of one has broken."""
        from tepo.evaluation.responses import sample_rows
        from tepo.sampling.engine_ranks import EngineOfRank

        config, shares, counts = self.config, {}, {}
        engine = EngineOfRank.of(self.comm, chosen(config.sampler.tensor_parallel))
        for benchmark, problems in self.sets:
            own_problems = engine.share(problems)
            broken: Diverged | None = None
            right: list[int] | None = None
            try:
                rows = sample_rows(benchmark, own_problems, self.tools, self.settings) if own_problems else []
                right = (
                    np.reshape([row["correct"] for row in rows], (len(own_problems), benchmark.samples))
                    .sum(axis=1)
                    .tolist()
                )
            except Diverged as error:  # the others' problems may still have an answer: all meet before it is raised
                broken = error
            parts: list[Any] = [right] if self.comm is None else self.comm.all_gather_object(right)
            if None in parts:
                raise broken or Diverged("the policy has diverged on another rank")
            of_all = [0] * len(problems)
            for index, part in enumerate(parts[:: len(parts) // engine.count]):  # a rank of each engine
                of_all[index :: engine.count] = part
            shares[f"val-core/{benchmark.name}/acc/mean@{benchmark.samples}"] = float(
                sum(of_all) / (len(problems) * benchmark.samples)
            )
            counts[f"val-aux/{benchmark.name}/right@{benchmark.samples}"] = of_all
        return {**shares, AVERAGE: float(np.mean(list(shares.values()))), **counts}
