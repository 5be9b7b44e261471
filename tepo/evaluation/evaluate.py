"""Evaluation on benchmarks: sample, grade, store one row a sample, score. Killed at any moment, it goes on where it
was."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

import pyarrow as pa

from tepo.common.errors import UserError
from tepo.common.files import parse_json, write_json
from tepo.common.provenance import add_sampler, recorded
from tepo.evaluation.responses import ask, grade_again
from tepo.evaluation.results import conclude, read_result
from tepo.evaluation.scheduler import sample_all
from tepo.evaluation.settings import Report, Settings, silent
from tepo.evaluation.writer import EvaluationTask, ResultWriter, Unfinished
from tepo.problems.benchmarks import Benchmark
from tepo.problems.grader import Grader
from tepo.problems.hashes import set_hash
from tepo.problems.problem import Problem
from tepo.sampling.sampler import Sampler
from tepo.sampling.served import ServedSampler
from tepo.store.evaluation_result import SAMPLES, TASK, Result, remove_parts, save_result
from tepo.store.samples_file import table_of, write_table


def evaluate(
    tasks: Sequence[EvaluationTask],
    sampler: Sampler | ServedSampler,
    tokenizer: Any,
    settings: Settings,
    report: Report = silent,
) -> list[Result]:
    """Evaluate a policy on benchmarks, all in one queue of the sampler; finish what an earlier call began in their
    folders, and return what is finished there. tokenizer: None for a served policy, which is asked with text. report:
    called for each benchmark at the start and when rows of it are stored. Raises UserError when a folder holds another
    evaluation."""
    results: dict[str, Result] = {}
    begun: list[Unfinished] = []
    for task in tasks:
        problems = task.benchmark.load_problems()[: settings.limit]
        prompts = ask(task.benchmark, problems, tokenizer, settings)
        identity = _identity(task.benchmark, problems, settings, prompts.params.stop)
        finished = _claim(task, identity)
        if finished:
            results[task.benchmark.name] = finished
        else:
            begun.append(Unfinished(task, identity, prompts))
    if not begun:
        return list(results.values())

    def complete(evaluation: Unfinished) -> None:
        """Store the result of an evaluation that has all of its rows."""
        task, folder = evaluation.task, evaluation.task.folder
        table = refresh_verdicts(task.benchmark, table_of(evaluation.rows()), task.grader)
        results[evaluation.name] = result = conclude(
            evaluation.name, task.benchmark, table, task.grader.fingerprint, evaluation.identity
        )
        write_table(folder / SAMPLES, table)
        save_result(folder, result)
        remove_parts(folder)

    together = {evaluation.name: max(1, settings.rows_per_part // evaluation.asked.params.n) for evaluation in begun}
    queues = [evaluation.left(together[evaluation.name] if sampler.side_by_side is None else 1) for evaluation in begun]
    part = min(together[evaluation.name] * evaluation.asked.params.n for evaluation in begun)
    with ExitStack() as sessions:
        for evaluation in begun:
            sessions.enter_context(recorded(evaluation.task.folder, "evaluate"))
            add_sampler(evaluation.task.folder, sampler.parts)
        writer = ResultWriter(begun, tokenizer, part, report, complete)
        with closing(writer), closing(sample_all(queues, sampler)) as ended:
            for units in ended:
                writer.add(units)
    return [results[task.benchmark.name] for task in tasks]


def _identity(
    benchmark: Benchmark, problems: Sequence[Problem], settings: Settings, stop: Sequence[int]
) -> dict[str, Any]:
    """Identity of an evaluation: what is evaluated and how. A resumed one must have the same. `rows_per_part` is in it,
    since what the embedded sampler decodes together decides the last bits; `stop` where a chat template may be; the
    draws, which are in the fingerprint too, where some tokens may not be drawn."""
    templated = benchmark.prompt != "raw" and settings.wrap == "auto"
    return {
        "benchmark": benchmark.name,
        "fingerprint": benchmark.fingerprint,
        "grading": benchmark.grading,
        "content_hash": set_hash(problems),
        "seed": settings.seed,
        "limit": settings.limit,
        "policy": dict(settings.policy),
        "wrap": settings.wrap,
        "thinking": settings.thinking,
        "rows_per_part": settings.rows_per_part,
        **({"system": settings.system} if settings.system else {}),
        **({"stop": list(stop)} if templated else {}),
        **({"draws": {"temperature": benchmark.temperature, **benchmark.filters}} if benchmark.filters else {}),
    }


def refresh_verdicts(benchmark: Benchmark, table: pa.Table, grader: Grader) -> pa.Table:
    """The table with every row judged by this grader; rows that carry its fingerprint already are left alone."""
    rows = table.to_pylist()
    stale = [row for row in rows if row["grader"] != grader.fingerprint]
    if not stale:
        return table
    grade_again(benchmark, grader, stale)
    return table_of(rows)


def _claim(task: EvaluationTask, identity: Mapping[str, Any]) -> Result | None:
    """Make the folder this task's own.
    Returns the result if it is finished; raises UserError if it belongs to another task."""
    folder, path = task.folder, task.folder / TASK
    if path.is_file():
        try:
            begun = parse_json(path.read_bytes())
        except ValueError:
            begun = None
        if not isinstance(begun, dict):
            raise UserError(
                "the file is damaged",
                where=str(path),
                fix="restore it from a copy, or move the folder away and evaluate again",
            )
        json_identity = json.loads(json.dumps(identity))
        different = [key for key in {**json_identity, **begun} if begun.get(key) != json_identity.get(key)]
        if different:
            differences = "; ".join(
                f"{key} {begun.get(key)!r} there, {json_identity.get(key)!r} asked for" for key in different
            )
            graded = different == ["grading"] and (folder / SAMPLES).is_file()
            fix = f"`tepo data regrade {folder}`" if graded else "choose another folder, or move this one away"
            raise UserError(f"the folder holds another evaluation: {differences}", where=str(folder), fix=fix)
    result = read_result(folder, task.benchmark) if (folder / SAMPLES).is_file() else None
    if result is None:
        write_json(path, dict(identity))
    return result
