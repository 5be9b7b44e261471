"""Runs that are trained and measured as far as files can tell."""

from dataclasses import asdict

import numpy as np

from tepo.common.files import write_json
from tepo.evaluation.scores import score
from tepo.problems.benchmarks import load_benchmark
from tepo.store.evaluation_result import SAMPLES, Result
from tepo.store.samples_file import table_of, write_table
from tepo.studies.plan import Unit


def finish(unit: Unit, chance: float, problems: int = 60, **metrics: float) -> None:
    """Files as of a unit that was trained, with these metrics, and measured, every sample right with this chance."""
    unit.run.create(unit.config)
    for step in range(1, unit.config.train.steps + 1):
        unit.run.append_metrics({"training/global_step": step, **metrics})
    unit.run.mark("finished", steps=unit.config.train.steps)
    (name,) = unit.config.data.benchmarks
    right = np.random.default_rng(unit.seed + round(1000 * chance)).random((problems, 4)) < chance
    samples = table_of([
        {"problem": f"p{p}", "sample": k, "family": "add3", "prompt": "1+1=", "gold": "2", "response": "2",
         "extracted": "2", "correct": bool(right[p, k]), "reason": "", "tokens": 1, "finish": "stop", "logprob": 0.0,
         "grader": "g"}
        for p in range(problems) for k in range(4)
    ])  # fmt: skip
    folder = unit.run.evaluation(name)
    write_table(folder / SAMPLES, samples)
    task = {"fingerprint": load_benchmark(name).fingerprint}
    result = Result(name, problems, 4, float(right.mean()), None, score(samples), {}, "g", task)
    write_json(folder / "result.json", asdict(result))
    session = {"what": "train", "started": "2026-01-02T10:00:00+00:00", "ended": None}
    write_json(unit.folder / "provenance.json", {"sessions": [session]})
