"""Which problems a run is validated on. Imports no torch: a table tells by them whether a validation is of today's."""

from dataclasses import replace

from tepo.config.run_config import RunConfig
from tepo.problems.benchmarks import Benchmark, load_benchmark
from tepo.problems.problem import Problem

START = "start/"  # before the names of what was measured on the untrained policy; in the row of the first step
_SEED = 1  # of the generated problems, the same in every run: so runs are compared on the same ones
_HELD_OUT = "held_out"


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
