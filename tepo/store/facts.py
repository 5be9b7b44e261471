"""Facts about runs as three pandas frames: read once, from run folders or from records, and never written to.
Tables, claims, figures and sentences are computed from them.

runs     a row a run of a study: study, label, model, seed, words (the overrides that it was made with) and
         run (its id); source: "store", "record" or nothing; finished, ending, trained (steps on record), validation,
         made (sessions of processes: versions, machine, when) and costs
scores   run, benchmark, problem: right of samples; grader, task and timeouts of the measurement that it is from
curves   run, step, and a column a metric under verl's names
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from tepo.store.cost import Cost
from tepo.store.early_stop import Ending
from tepo.store.evaluation_result import RightAnswers, Validated
from tepo.store.stored_tokens import Excerpt

STEP = "training/global_step"
COUNT = "training/responses"  # whole numbers
_SUMMED = {COUNT: 15, "perf/cpu_s": 2, "perf/cpu_core_s": 2, "actor/realised_kl_k3": 2}  # metric: digits
_DRAWN = {  # of a long run only at some of the steps
    "critic/score/mean": 6,  # this and the entropy decide claims too
    "actor/entropy": 6,
    "actor/pg_clipfrac": 2,
    "actor/grad_norm": 3,
    "response_length/mean": 3,
    "timing_s/step": 2,
}
BEST = "critic/score/best@"
_BEST = re.compile(rf"{BEST}(\d+)$")  # figures show the two largest
_VALIDATED = ("val-core/", "start/val-core/")  # exact
_POINTS = 60  # of a curve, about: more are not seen


def thinned(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Metrics as a record keeps them, a mapping a step: what is drawn, with few digits; what is summed or chosen by, at
    every step. rows: of metrics.jsonl, one a step from 1 on. What is thin already stays as it is."""
    largest = sorted({int(match[1]) for row in rows for name in row if (match := _BEST.match(name))})[-2:]
    drawn_digits = _DRAWN | {f"{BEST}{size}": 3 for size in largest}
    stride = max(1, len(rows) // _POINTS)  # the same for runs of the same length
    thinned_rows = []
    for number, row in enumerate(rows):
        on_chart = number % stride == 0 or number == len(rows) - 1
        digits = {STEP: 15, **_SUMMED, **(drawn_digits if on_chart else {})}
        thin = {name: float(f"{row[name]:.{count}g}") for name, count in digits.items() if row.get(name) is not None}
        exact = {name: value for name, value in row.items() if name.startswith(_VALIDATED)}
        thinned_rows.append(thin | {STEP: int(row[STEP])} | exact)
    return thinned_rows


SCORES: tuple[str, ...] = ("run", "benchmark", "problem", "right", "samples", "grader", "task", "timeouts")
_WORDS = ("run", "benchmark", "problem", "grader", "task")  # of the scores, in categories: each text once


@dataclass(frozen=True)
class Known:
    """Facts about one run. trained: steps with metrics."""

    source: str = ""
    finished: bool = False
    outcome: str = "not started"
    ending: Ending | None = None
    trained: int = 0
    made: Sequence[Mapping[str, Any]] = ()
    costs: Sequence[Cost] = ()
    validation: Validated | None = None
    excerpt: Excerpt | None = None


@dataclass(frozen=True)
class Facts:
    """The three frames."""

    runs: pd.DataFrame
    scores: pd.DataFrame
    curves: pd.DataFrame

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process go the frames, and not what was looked up in them."""
        return Facts, (self.runs, self.scores, self.curves)

    @cached_property
    def _known(self) -> dict[Any, Any]:
        """Rows by run, and by run and whether it tunes: one study may tune with a run that another measures."""
        rows = list(reversed(list(self.runs.itertuples(index=False))))
        return {row.run: row for row in rows} | {(row.run, row.tuning): row for row in rows}

    def of(self, run: str | tuple[str, bool]) -> Any:
        """The row of a run, as a tuple with names; by the key of a unit (`tepo.studies.plan`) that where it helps to
        choose or does not, which may differ in `done` and `stale` alone. Raises KeyError for a run that is not in the
        frame."""
        return self._known[run]

    @cached_property
    def _places(self) -> dict[tuple[str, str], Any]:
        groups = self.scores.groupby(["run", "benchmark"], sort=False, observed=True).indices
        return {(str(run), str(name)): places for (run, name), places in groups.items()}

    @cached_property
    def _measurements(self) -> dict[tuple[str, str], Any]:
        first = self.scores.drop_duplicates(["run", "benchmark"])
        return {(row.run, row.benchmark): row for row in first.itertuples(index=False)}

    def has(self, run: str, benchmark: str) -> bool:
        """Tell whether a run is measured on a benchmark."""
        return (run, benchmark) in self._measurements

    def right(self, run: str, benchmark: str) -> RightAnswers | None:
        """Right answers problem by problem; None where the run is not measured on the benchmark."""
        places = self._places.get((run, benchmark))
        if places is None:
            return None
        part = self.scores.iloc[places]
        return RightAnswers(tuple(part["problem"]), tuple(map(int, part["right"])), int(part["samples"].iloc[0]))

    def measurement(self, run: str, benchmark: str) -> Any:
        """The grader, task and timeouts of a measurement; None where there is none."""
        return self._measurements.get((run, benchmark))

    @cached_property
    def _steps(self) -> tuple[dict[str, Any], list[str], Any]:
        """Places of a run's rows, and the metrics with their values."""
        places = self.curves.groupby("run", observed=True, sort=False).indices
        names = [str(name) for name in self.curves.columns if name not in ("run", "step")]
        return {str(run): rows for run, rows in places.items()}, names, self.curves[names].to_numpy(float)

    def metrics(self, run: str) -> list[dict[str, Any]]:
        """The metrics of a run, a mapping a step, of each step those that it has."""
        by_run, names, values = self._steps
        steps, rows = self.curves["step"].to_numpy(), []
        for place in by_run.get(run, ()):
            pairs = zip(names, values[place].tolist(), strict=True)
            rows.append({STEP: int(steps[place])} | {name: value for name, value in pairs if value == value})
        return rows

    def lasting(self, run: str) -> list[dict[str, Any]]:
        """The metrics as a record keeps them, whether they are from one or not: what is decided by them must not depend
        on which of the two is there."""
        return self.metrics(run) if self.of(run).source == "record" else thinned(self.metrics(run))


def facts_from(
    runs: Sequence[Mapping[str, Any]], scores: Sequence[pd.DataFrame], curves: Sequence[pd.DataFrame]
) -> Facts:
    """Frames from their rows, and from `scores_of` and `curves_of` run by run."""
    return Facts(pd.DataFrame(runs), joined_scores(scores), joined_curves(curves))


def scores_of(run: str, benchmark: str, answers: RightAnswers, grader: str, task: str, timeouts: int) -> pd.DataFrame:
    """Scores of a run on a benchmark."""
    return pd.DataFrame(
        {
            "run": run,
            "benchmark": benchmark,
            "problem": np.array(answers.problems, dtype=object),
            "right": np.array(answers.right, dtype="int16"),
            "samples": np.int16(answers.samples),
            "grader": grader,
            "task": task,
            "timeouts": np.int32(timeouts),
        }
    )


def joined_scores(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Scores of several runs, texts as categories."""
    return _joined(parts, _WORDS, SCORES)


def curves_of(run: str, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Curves of a run from its metrics, but for lists of figures a problem."""
    numbers = [{name: value for name, value in row.items() if not isinstance(value, list)} for row in rows]
    frame = pd.DataFrame(numbers).rename(columns={STEP: "step"})
    frame.insert(0, "run", run)
    return frame


def joined_curves(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Curves of several runs; a metric that a run lacks is missing."""
    return _joined(parts, ("run",), ("run", "step"))


def _joined(parts: Sequence[pd.DataFrame], words: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """The rows of all parts, without any these columns. Texts get the categories of all parts first: those of different
    categories pandas would join text by text."""
    categories = dict.fromkeys(words, "category")
    some = [part.astype(categories) for part in parts if len(part)]
    if not some:
        return pd.DataFrame(columns=list(columns)).astype(categories)
    for word in words:
        texts = pd.Index(sorted(set[str]().union(*(part[word].cat.categories for part in some))))
        some = [part.assign(**{word: part[word].cat.set_categories(texts)}) for part in some]
    joined = pd.concat(some, ignore_index=True)
    return joined.assign(**{word: joined[word].cat.remove_unused_categories() for word in words})
