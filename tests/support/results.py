"""Runs that are trained and measured as far as files can tell."""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from tepo.analysis.tables import study_table
from tepo.common.files import write_json
from tepo.evaluation.scores import score
from tepo.problems.benchmarks import load_benchmark
from tepo.reporting.tables.table import Table
from tepo.store.evaluation_result import SAMPLES, Result
from tepo.store.facts import Facts
from tepo.store.run_id import identity
from tepo.store.samples_file import table_of, write_table
from tepo.studies.plan import Unit
from tepo.studies.planned_facts import read_facts
from tepo.studies.study import Study


def fall(unit: Unit, rewards: Sequence[float], said: str = "9") -> None:
    """Files as of a unit that trained these rewards and then collapsed, with a dump of each step: two responses to each
    of three prompts, in tokens of one letter."""
    unit.folder.create(unit.config, identity(unit.config))
    for step, reward in enumerate(rewards, start=1):
        unit.folder.append_metrics({"training/global_step": step, "critic/score/mean": reward})
        responses = [
            {"prompt": f"{group}+{step}=", "answer": "1", "reward": reward, "finished": True, "group": group,
             "tokens": list(f"{group}{member}{said}"),
             "values": {"entropy": [0.1234567] * (2 + len(said)), "entropy_change": [-0.5, 0.5] + [0.0] * len(said),
                        "advantage": [1.0] * (2 + len(said))}}
            for group in (7, 3, 5) for member in (0, 1)
        ]  # fmt: skip
        write_json(unit.folder.tokens(step), {"format": 1, "step": step, "objective": "gpg", "responses": responses})
    end_training(unit, len(rewards), ending={"kind": "collapse", "step": len(rewards) + 1, "why": "all wrong"})


def end_training(unit: Unit, steps: int, **more: object) -> None:
    """Files as of a unit whose training has ended, on the second of January."""
    unit.folder.mark("finished", steps=steps, **more)
    session = {"what": "train", "started": "2026-01-02T10:00:00+00:00", "ended": None}
    write_json(unit.folder.path / "provenance.json", {"sessions": [session]})


def facts_of(study: Study, units: Sequence[Unit]) -> Facts:
    """What the store holds of them."""
    return read_facts([(study, list(units))])[1]


def table_from_store(study: Study, units: Sequence[Unit]) -> Table:
    """The study's table from its store."""
    return study_table(study, units, facts_of(study, units))


def finish(unit: Unit, chance: float, problems: int = 60, **metrics: float) -> None:
    """Files as of a unit that was trained, with these metrics, and measured, every sample right with this chance."""
    unit.folder.create(unit.config, identity(unit.config))
    for step in range(1, unit.config.train.steps + 1):
        unit.folder.append_metrics({"training/global_step": step, **metrics})
    end_training(unit, unit.config.train.steps)
    measure(unit, chance, problems)


def measure(unit: Unit, chance: float, problems: int = 60) -> None:
    """Files as of a measurement, every sample right with this chance."""
    (name,) = unit.config.data.benchmarks
    right = np.random.default_rng(unit.seed + round(1000 * chance)).random((problems, 4)) < chance
    samples = table_of([
        {"problem": f"p{p}", "sample": k, "family": "add3", "prompt": "1+1=", "gold": "2", "response": "2",
         "extracted": "2", "correct": bool(right[p, k]), "reason": "", "tokens": 1, "finish": "stop", "logprob": 0.0,
         "grader": "g"}
        for p in range(problems) for k in range(4)
    ])  # fmt: skip
    folder = unit.folder.evaluation(name)
    write_table(folder / SAMPLES, samples)
    task = {"fingerprint": load_benchmark(name).fingerprint}
    result = Result(name, problems, 4, float(right.mean()), None, score(samples), {}, "g", task)
    write_json(folder / "result.json", asdict(result))
