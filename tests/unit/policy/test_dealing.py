import math

import numpy as np
import pytest

from tepo.policy.packing.load_balance import Sequences, deal


def paper(seed: int, groups: int = 16, size: int = 8) -> Sequences:
    """A mini-batch of the paper: 16 groups of 8; lognormal responses of 2k tokens on average, at most 8,192."""
    rng = np.random.default_rng(seed)
    responses = np.minimum(rng.lognormal(np.log(2000) - 0.32, 0.8, groups * size).astype(np.int64) + 1, 8192)
    prompts = np.repeat(rng.integers(60, 400, groups), size)
    return Sequences(prompts, responses, np.repeat(np.arange(groups), size))


def dealt(given: Sequences, budget: int, ranks: int) -> list[list[list[int]]]:
    return deal(given.prompts.tolist(), given.responses.tolist(), given.groups.tolist(), budget, ranks)


def loads(given: Sequences, ranks: list[list[list[int]]]) -> np.ndarray:
    """Cost of each rank."""
    return np.array([sum(given.cost(part) for part in parts) for parts in ranks])


@pytest.mark.parametrize("ranks", [8, 16])
@pytest.mark.parametrize("seed", range(5))
def test_ranks_cost_the_same_in_few_micro_batches(ranks: int, seed: int) -> None:
    """No more of them than with a tenth to spare."""
    given = paper(seed)
    shares = dealt(given, 16_384, ranks)
    cost = loads(given, shares)
    assert cost.max() / cost.mean() <= 1.02
    pushed = max(sum(map(given.pushed, parts)) for parts in shares)
    assert len(shares[0]) <= math.ceil(pushed / (0.9 * 16_384))


@pytest.mark.parametrize("ranks", [2, 8, 16, 100])
@pytest.mark.parametrize("budget", [1, 3000, 16_384, 10**7])
def test_every_sequence_is_in_one_micro_batch_that_fits(ranks: int, budget: int) -> None:
    given = paper(7)
    shares = dealt(given, budget, ranks)
    parts = [part for rank in shares for part in rank]
    assert sorted(index for part in parts for index in part) == list(range(128))
    assert all(len(part) < 2 or given.pushed(part) <= budget for part in parts)
    assert all(part == sorted(part) for part in parts), "a group's responses must lie side by side"
    assert len(shares) == ranks
    assert len({len(rank) for rank in shares}) == 1
    assert shares == dealt(given, budget, ranks)


@pytest.mark.parametrize("seed", range(5))
def test_never_dearer_than_complete_groups(seed: int) -> None:
    """Also where prompts are as long as responses, so that cut groups cost."""
    rng = np.random.default_rng(seed)
    given = Sequences(np.full(64, 200), rng.integers(50, 400, 64), np.repeat(np.arange(16), 4))
    groups = [list(range(start, start + 4)) for start in range(0, 64, 4)]
    by_rank = [0.0] * 4
    for group in sorted(groups, key=given.cost, reverse=True):
        by_rank[by_rank.index(min(by_rank))] += given.cost(group)
    assert loads(given, dealt(given, 10**6, 4)).max() <= max(by_rank)


def test_groups_stay_together_where_that_costs_nothing() -> None:
    given = Sequences(np.full(16, 100), np.full(16, 50), np.repeat(np.arange(4), 4))
    assert sorted(sorted(rank[0]) for rank in dealt(given, 10**6, 4)) == [
        list(range(start, start + 4)) for start in range(0, 16, 4)
    ]


def test_a_long_context_counts() -> None:
    """Eight responses of 1k tokens cost less than one of 8k: its tokens attend to more."""
    given = Sequences(np.full(9, 1), np.array([8192, *[1024] * 8]), np.arange(9))
    assert given.cost([0]) > 1.05 * given.cost(range(1, 9))
