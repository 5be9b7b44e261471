"""Scores of one evaluation: avg@k, unbiased pass@k, maj@k, truncated share."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tepo.common.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa


def pass_at_k(n: int | np.ndarray, correct: int | np.ndarray, k: int) -> np.ndarray:
    """Unbiased estimate of P(at least one of k samples is right) from `correct` of `n`: 1 - C(n-c, k) / C(n, k). Chen
    et al. 2021 (arXiv 2107.03374), Eq. 1, as a product so that nothing overflows. Broadcasts. Raises ValueError for k >
    n."""
    n, correct = np.broadcast_arrays(np.asarray(n, dtype=np.int64), np.asarray(correct, dtype=np.int64))
    if k < 1 or (n < k).any():
        raise ValueError(f"pass@{k} needs at least {k} samples a problem")
    draws = np.arange(k)
    misses = np.clip((n - correct)[..., None] - draws, 0, None) / (n[..., None] - draws)
    return 1.0 - misses.prod(axis=-1)


def majority(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """Probability that the most frequent answer is right, ties drawn evenly. Right answers are one class however they
    are written (all equal the gold); wrong ones differ by their text; a sample without an answer does not vote. 0 when
    nobody votes."""
    votes: Counter[str | None] = Counter()  # None stands for the gold
    for answer, right in zip(answers, correct, strict=True):
        if right:
            votes[None] += 1
        elif answer is not None:
            votes[answer.strip()] += 1
    if not votes:
        return 0.0
    most = max(votes.values())
    winners = [answer for answer, count in votes.items() if count == most]
    return (None in winners) / len(winners)


def score(table: "pa.Table") -> dict[str, float]:
    """Scores of a table of samples (tepo.store.samples_file), the same number of samples for every problem;
    shares in 0..1."""
    problems, correct, answers = by_problem(table)
    k = correct.shape[1]
    scores = {f"avg@{k}": float(correct.mean())}
    powers = [2**i for i in range(1, k.bit_length())]
    for size in sorted({*powers, k} - {1}):
        scores[f"pass@{size}"] = float(pass_at_k(k, correct.sum(axis=1), size).mean())
    if k > 1:
        scores[f"maj@{k}"] = float(np.mean([majority(answers[i], correct[i].tolist()) for i in range(len(problems))]))
    scores["truncated"] = float(np.mean([finish == "length" for finish in table["finish"].to_pylist()]))
    scores["mean_tokens"] = float(np.mean(table["tokens"].to_numpy()))
    return scores


def by_problem(table: "pa.Table") -> tuple[list[str], np.ndarray, list[list[str | None]]]:
    """Problem ids [P], sorted, verdicts bool [P, k], answers [P][k]. Sorted: the bootstrap draws problems by index, and
    the same samples must have the same interval in any order. Raises UserError for unequal counts."""
    order: dict[str, list[int]] = {}
    for index, problem in enumerate(table["problem"].to_pylist()):
        order.setdefault(problem, []).append(index)
    if len({len(rows) for rows in order.values()}) != 1:
        what = "problems have different numbers of samples: rows are missing or doubled"
        raise UserError(what, fix="move the evaluation's folder away and evaluate again")
    order = dict(sorted(order.items()))
    verdicts, extracted = table["correct"].to_numpy(zero_copy_only=False), table["extracted"].to_pylist()
    correct = np.array([[verdicts[index] for index in rows] for rows in order.values()], dtype=bool)
    return list(order), correct, [[extracted[index] for index in rows] for rows in order.values()]
