"""Prepare, loss and backward of an objective on one micro-batch of 16,100 tokens, beside a clipped loss written out in
torch by hand (GRPO/DAPO without metrics): what a formula costs over the numbers in it.

    OMP_NUM_THREADS=1 python -m perf.objective_loss [--turns 15]

CPU seconds of one thread, both sides in turn, medians; bytes a token: the largest sum of what is alive, as torch's
profiler counts it. Metrics are in: training takes them with every loss.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from tepo.objectives import Groups, TokenBatch, load_objective

NAMES = ("grpo_dapo", "tepo", "gspo", "steer", "clip_cov")
RESPONSES, LENGTH = 100, 161


def batch_for(name: str) -> tuple[Any, TokenBatch]:
    """An objective, and a mini-batch of one micro-batch with all that it reads."""
    objective, draw = load_objective(name), torch.Generator().manual_seed(0)
    lengths = torch.full((RESPONSES,), LENGTH)
    old, step, entropies = (torch.randn(RESPONSES * LENGTH, generator=draw) for _ in range(3))
    old, entropies = -old.abs() - 0.1, entropies.abs()
    rewards, groups = (torch.arange(RESPONSES) % 3 == 0).float(), torch.arange(RESPONSES) // 10
    advantages = objective.advantages(Groups(rewards, groups, lengths, entropies, rewards > 0, LENGTH))
    return objective, TokenBatch(
        old, advantages, lengths, logprobs=(old + 0.05 * step).requires_grad_(), entropies=entropies * 0.95,
        old_entropies=entropies, uid=torch.arange(RESPONSES), max_new_tokens=LENGTH,
    )  # fmt: skip


def by_hand(batch: TokenBatch) -> None:
    """The clipped loss over all tokens."""
    assert batch.logprobs is not None
    ratio = (batch.logprobs - batch.old_logprobs).exp()
    gain = torch.minimum(ratio * batch.advantages, ratio.clamp(0.8, 1.28) * batch.advantages)
    (-gain.sum() / batch.tokens).backward()


def spent(work: Callable[[], None]) -> float:
    """CPU milliseconds of a call."""
    start = time.process_time()
    work()
    return 1e3 * (time.process_time() - start)


def largest(work: Callable[[], None]) -> int:
    """The largest number of bytes that are alive during a call, over those before it."""
    with torch.profiler.profile(profile_memory=True) as profiled:
        work()
    alive = peak = 0
    for event in profiled.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            alive += event.nbytes()
            peak = max(peak, alive)
    return peak


def measure(turns: int = 15) -> dict[str, Any]:
    """Milliseconds and bytes a token of every objective, and of the loss by hand."""
    rows = {}
    for name in NAMES:
        objective, batch = batch_for(name)

        def ours(objective: Any = objective, batch: TokenBatch = batch) -> None:
            objective.loss(batch, objective.prepare(batch)).loss.backward()

        def peer(batch: TokenBatch = batch) -> None:
            by_hand(batch)

        for work in (ours, peer) * 3:
            work()
        pairs = [(spent(ours), spent(peer)) for _ in range(20 * turns)]
        own, theirs = (median(side) for side in zip(*pairs, strict=True))
        bytes_ = largest(ours) / batch.tokens
        rows[name] = {"ms": own, "by_hand_ms": theirs, "ratio": own / theirs, "bytes_a_token": bytes_}
    return {"name": "prepare + loss + backward, 16,100 tokens, float32", "rows": rows}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    for name, row in measure(parser.parse_args().turns)["rows"].items():
        shown = "  ".join(f"{key} {value:8.2f}" for key, value in row.items())
        print(f"{name:12}{shown}")
