"""Responses that a prompt gives: lognormal lengths, or those of an evaluation of a real run."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from tepo.planning.simulator.cards import PROMPT as PROMPT


@dataclass(frozen=True)
class Drawn:
    """Lengths of a group's responses, and how many of them are right: the first ones."""

    lengths: list[int]
    right: int


class Workload(Protocol):
    """Groups by the number of their prompt, the same for every schedule."""

    @property
    def limit(self) -> int: ...

    def group(self, number: int, size: int) -> Drawn:
        """`size` responses of at most `limit` tokens."""
        ...


@dataclass(frozen=True)
class Lognormal:
    """Lengths with about this mean once they are cut at the limit; `kept` of the groups are mixed. spread: of the
    logarithm, half of its variance between prompts."""

    mean: float
    limit: int
    kept: float = 0.5
    spread: float = 0.8
    seed: int = 0

    def group(self, number: int, size: int) -> Drawn:
        rng = np.random.default_rng([self.seed, number])
        half = self.spread / np.sqrt(2)
        logs = self._middle + half * rng.standard_normal() + half * rng.standard_normal(size)
        lengths = np.clip(np.exp(logs).astype(int), 1, self.limit).tolist()
        right = int(rng.integers(1, max(size, 2))) if rng.random() < self.kept else size * int(rng.random() < 0.5)
        return Drawn(lengths, right)

    @cached_property
    def _middle(self) -> float:
        """The logarithm's mean with which the cut lengths have the mean that is asked for."""
        normal = np.random.default_rng(0).standard_normal(100_000) * self.spread
        low, high = 0.0, float(np.log(self.limit))
        for _ in range(30):
            middle = (low + high) / 2
            cut = np.minimum(np.exp(middle + normal), self.limit).mean()
            low, high = (middle, high) if cut < self.mean else (low, middle)
        return low


@dataclass(frozen=True)
class MeasuredLengths:
    """Groups of a real evaluation (samples.parquet), in turn: lengths and right answers of each problem, as often as a
    group has responses. limit: its longest response."""

    path: Path

    @cached_property
    def _groups(self) -> list[tuple[np.ndarray, np.ndarray]]:
        from tepo.common.parquet import read_parquet

        table = read_parquet(self.path, ["problem", "tokens", "correct"]).to_pandas()
        return [(part.tokens.to_numpy(), part.correct.to_numpy()) for _, part in table.groupby("problem", sort=False)]

    @cached_property
    def limit(self) -> int:  # type: ignore[override]
        return int(max(lengths.max() for lengths, _ in self._groups))

    def group(self, number: int, size: int) -> Drawn:
        lengths, right = self._groups[number % len(self._groups)]
        chosen = np.random.default_rng([1, number]).integers(0, len(lengths), size)
        order = np.argsort(~right[chosen], kind="stable")
        return Drawn(np.maximum(lengths[chosen][order], 1).tolist(), int(right[chosen].sum()))
