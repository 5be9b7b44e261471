"""Scores of a model in memory that belongs to no run yet: the bases that `tepo warmstart` makes."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tepo.evaluation.evaluate import evaluate
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.grader import Grader
from tepo.sampling.torch_sampler import TorchSampler


def score_base(
    model: Any,
    tokenizer: Any,
    benchmarks: Sequence[str],
    *,
    samples: int = 8,
    limit: int | None = None,
    report: Callable[[int, str], None] = lambda done, name: None,
) -> dict[str, dict[str, float]]:
    """Scores (shares in 0..1; tepo.evaluation.scores) by benchmark, with `samples` a problem.
    `report(benchmarks done, name)` follows."""
    sampler = TorchSampler(model, tokenizer)
    scores = {}
    for index, name in enumerate(benchmarks):
        report(index, name)
        benchmark = replace(load_benchmark(name), samples=samples)
        with Grader(benchmark.grader) as grader, tempfile.TemporaryDirectory() as folder:
            scores[name] = evaluate(benchmark, sampler, tokenizer, grader, Path(folder), seed=0, limit=limit).scores
    report(len(benchmarks), "")
    return scores
