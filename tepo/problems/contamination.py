"""Benchmark problems that a training set holds almost verbatim.

Two statements are compared by the Jaccard index of their 24-character shingles after case, punctuation, white space,
drawings and LaTeX decoration are taken off. Above 0.8 they are the same problem up to an edit (not always: a few differ
in a number and so in the answer). Chinese statements are not compared: nothing is left of them but formulas."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tepo.problems.problem import Problem

LENGTH = 24
SAME, SIMILAR = 0.8, 0.6

_DRAWING = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL)
_DECORATION = re.compile(
    r"\\(left|right|displaystyle|quad|qquad|text|textbf|textit|emph|mathrm|operatorname|mathcal|mathbb)(?![a-z])"
)
_CHINESE = re.compile("[一-鿿]")
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Overlap:
    """A benchmark problem, a training problem like it, and their Jaccard index."""

    problem: str
    training: str
    jaccard: float


def is_compared(statement: str) -> bool:
    """Tell whether a statement is in a language that shingles can compare."""
    return not _CHINESE.search(statement)


def normalise(statement: str) -> str:
    """Lower-case letters and digits of a statement, without drawings and decorating commands."""
    text = _DRAWING.sub(" ", statement.lower())
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    return re.sub("[^a-z0-9]", "", _DECORATION.sub("", text))


def overlaps(problems: Sequence[Problem], training: Sequence[Problem], threshold: float = SAME) -> list[Overlap]:
    """All pairs with a Jaccard index above `threshold`, by problem, the most alike first."""
    tests, tests_at, test_sizes = _shingles(problems)
    trains, trains_at, train_sizes = _shingles(training)
    order = np.argsort(tests, kind="stable")
    tests, tests_at = tests[order], tests_at[order]
    first, last = np.searchsorted(tests, trains, "left"), np.searchsorted(tests, trains, "right")
    repeats = last - first
    # Pair number j of a training shingle is the (j - start)-th test shingle equal to it.
    start = np.cumsum(repeats) - repeats
    matched = tests_at[np.repeat(first - start, repeats) + np.arange(repeats.sum())]
    pairs, shared = np.unique(matched * len(training) + np.repeat(trains_at, repeats), return_counts=True)
    test, train = pairs // max(len(training), 1), pairs % max(len(training), 1)
    jaccard = shared / (test_sizes[test] + train_sizes[train] - shared)
    indices = np.flatnonzero(jaccard > threshold)
    indices = indices[np.lexsort((train[indices], -jaccard[indices], test[indices]))]
    return [Overlap(problems[test[i]].id, training[train[i]].id, float(jaccard[i])) for i in indices]


def _shingles(problems: Sequence[Problem]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hashes of all distinct shingles, the problem each belongs to, and how many each problem has."""
    powers = _MULTIPLIER ** np.arange(LENGTH, dtype=np.uint64)
    per_text = []
    for problem in problems:
        text = normalise(problem.prompt) if is_compared(problem.prompt) else ""
        codes = np.frombuffer(text.ljust(LENGTH).encode() if text else b"", dtype=np.uint8).astype(np.uint64)
        windows = np.empty((0, LENGTH), np.uint64)
        if len(codes):
            windows = np.lib.stride_tricks.sliding_window_view(codes, LENGTH)
        per_text.append(np.unique((windows * powers).sum(axis=1, dtype=np.uint64)))
    sizes = np.array([len(hashes) for hashes in per_text], dtype=np.int64)
    hashes = np.concatenate(per_text) if per_text else np.empty(0, np.uint64)
    return hashes, np.repeat(np.arange(len(problems)), sizes), sizes
