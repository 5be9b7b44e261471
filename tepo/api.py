"""tepo from Python: each function is the command of the same name, without its printing. docs/store.md shows them."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tepo.analysis.run_result import RunResult
from tepo.analysis.study_result import StudyResult
from tepo.common.errors import UserError
from tepo.common.interpreter import settled
from tepo.common.trust import caller, say
from tepo.config.compose import compose
from tepo.launch.run_units import Slots, run_planned
from tepo.problems.grader import Grader, GraderOptions, Verdict
from tepo.problems.grader.options import FALLBACKS
from tepo.problems.rows import pair_of
from tepo.studies.plan import composed
from tepo.studies.plan_studies import plan_all
from tepo.studies.planned_facts import read_facts
from tepo.studies.vary import value_text


@settled()
def run(
    study: str,
    *,
    scale: str | None = None,
    seeds: Sequence[int] | None = None,
    store: str | Path = "runs",
    overrides: Sequence[str] = (),
    jobs: int | None = None,
    progress: bool = True,
    trust: bool = False,
) -> StudyResult:
    """Train and measure what the store lacks of a study, and give its table: `tepo ablate`.

    scale: default: laptop, or the only one that the study has. seeds: default: the study's. overrides: for every
    row, as after `--set` (`train.steps=20`, `data=words.jsonl`).
    jobs: runs side by side; default: one, or as many as the visible GPUs take. progress: bars on standard error or in
    the notebook's cell; off: nothing is printed.
    trust: execute Python that the study names, as `--trust` does.

    Raises UserError for bad input, RunFailed when a run failed; the others are kept.
    """
    _check(overrides, study=study, store=store, scale=scale or "")
    composed.cache_clear()
    plan = partial(plan_all, [study], scale, store=Path(store), seeds=seeds, overrides=overrides)
    with caller():
        say(overrides, trusts=trust)
        planned = run_planned(plan, Slots(jobs=jobs), quiet=not progress)
        return StudyResult.of(*read_facts(planned, seeds))


@settled()
def results(
    study: str,
    *,
    scale: str | None = None,
    seeds: Sequence[int] | None = None,
    store: str | Path = "runs",
    overrides: Sequence[str] = (),
    records: bool = True,
) -> StudyResult:
    """Read what is known of a study, without running anything: `tepo table`.

    It is read from the store, and with `records` from the records that ship, of runs that the store lacks. scale,
    overrides: as for `run`. seeds: default: the study's, and with `records` all that these hold.

    Raises UserError for bad input and for damaged files.
    """
    _check(overrides, study=study, store=store, scale=scale or "")
    composed.cache_clear()
    planned = plan_all([study], scale, store=Path(store), seeds=seeds, overrides=overrides)
    return StudyResult.of(*read_facts(planned, seeds, records=records))


@settled()
def train(
    overrides: Sequence[str] = (),
    *,
    store: str | Path | None = None,
    evaluate: bool = False,
    validate: bool = False,
    progress: bool = True,
    **words: bool | int | float | str | None,
) -> RunResult:
    """Train one run in this process, or find it where it is finished: `tepo train`.

    overrides: `["train.steps=40"]` …; words: keys without a dot, `objective="gspo", seed=3`. store: default: runs/.
    evaluate, validate: measure it on the benchmarks of its data, on validation problems. torch's threads and random
    state are as before when it returns.

    Raises UserError for bad input or a run that another process has, RunFailed when the run failed.
    """
    import torch

    from tepo.jobs.job import RunJob
    from tepo.training.run import Run

    _check(overrides, store=store or "")
    named = [f"{key}={value_text(value)}" for key, value in words.items()]
    config, before = compose([*overrides, *named]), time.process_time()
    config = replace(config, store=str(store)) if store else config
    job = RunJob(Run(config), evaluate=evaluate, validate=validate, quiet=not progress, cpu_before=before)
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng():
            if (rows := job.train()) is not None:
                job.measure(rows)
    finally:
        torch.set_num_threads(threads)
    return RunResult(job.folder.path)


def grade(rows: Iterable[Mapping[str, Any]], options: GraderOptions | None = None) -> list[Verdict]:
    """A verdict for each row of {"gold", "prediction"}, in order: `tepo data grade`.

    options: default: a prediction without a box may say its answer in other ways. Of a pandas frame:
    `frame.to_dict("records")`. Raises UserError naming the first row that cannot be graded.
    """
    pairs = []
    for number, row in enumerate(rows):
        try:
            pairs.append(pair_of(row))
        except UserError as error:
            raise UserError(error.what, where=f"row {number}", fix=error.fix) from None
    with Grader(options or GraderOptions(fallbacks=FALLBACKS)) as grader:
        return grader.grade(pairs)


def _check(overrides: Sequence[str], **texts: object) -> None:
    """Raises UserError for a text where a list belongs, and for what is no text: a notebook has no type checker."""
    if isinstance(overrides, str):
        raise UserError(f"overrides is a text: {overrides!r}", fix=f"overrides=[{overrides!r}]")
    if not isinstance(overrides, Sequence) or not all(isinstance(word, str) for word in overrides):
        raise UserError(f"overrides is no list of texts: {overrides!r}", fix="overrides=['train.steps=20']")
    for name, value in texts.items():
        if not isinstance(value, str | Path):
            raise UserError(f"{name} is no text: {value!r}", fix=f"{name}='…'")
