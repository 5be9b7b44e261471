"""Sequences side by side in micro-batches, and micro-batches dealt to ranks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tepo.policy.packing.load_balance import Sequences, deal
from tepo.policy.packing.packing import pack, split_by_tokens


def test_layout_of_two_groups():
    """An empty response trains nothing."""
    packed = pack([([5, 6], [[1, 2, 3], [], [4]]), ([7], [[8, 9]])])
    assert packed.tokens.tolist() == [5, 6, 1, 2, 7, 8]
    assert packed.positions.tolist() == [0, 1, 2, 3, 0, 1]
    assert packed.targets.tolist() == [1, 2, 3, 4, 8, 9]
    assert packed.rows.tolist() == [1, 2, 3, 1, 4, 5]
    assert packed.lengths.tolist() == [3, 0, 1, 2]
    with pytest.raises(ValueError, match="at least one"):
        pack([([], [[1]])])


sequences = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(0, 12), min_size=1, max_size=5)), min_size=1, max_size=6
)


@settings(max_examples=60, deadline=None)
@given(sequences, st.integers(1, 60))
def test_every_sequence_once_in_order_within_the_budget(groups, budget):
    prompts = [prompt for prompt, lengths in groups for _ in lengths]
    lengths = [length for _, lengths in groups for length in lengths]
    owners = [number for number, (_, lengths) in enumerate(groups) for _ in lengths]
    batches = split_by_tokens(prompts, lengths, owners, budget)
    assert [index for batch in batches for index in batch] == list(range(len(lengths)))

    def pushed(batch: list[int]) -> int:
        return sum(max(lengths[i] - 1, 0) for i in batch) + sum(groups[g][0] for g in {owners[i] for i in batch})

    assert all(pushed(batch) <= budget or len(batch) == 1 for batch in batches)
    for number, (prompt, own) in enumerate(groups):
        if prompt + sum(max(length - 1, 0) for length in own) <= budget:
            assert sum(any(owners[i] == number for i in batch) for batch in batches) == 1, "a group that fits was cut"


# ranks ----------------------------------------------------------------------------------------------------------------
def paper(seed: int, groups: int = 16, size: int = 8) -> Sequences:
    """A mini-batch of the paper: 16 groups of 8; lognormal responses of 2k tokens on average, at most 8,192."""
    rng = np.random.default_rng(seed)
    responses = np.minimum(rng.lognormal(np.log(2000) - 0.32, 0.8, groups * size).astype(np.int64) + 1, 8192)
    prompts = np.repeat(rng.integers(60, 400, groups), size)
    return Sequences(prompts, responses, np.repeat(np.arange(groups), size))


def dealt(given: Sequences, budget: int, ranks: int) -> list[list[list[int]]]:
    return deal(given.prompts.tolist(), given.responses.tolist(), given.groups.tolist(), budget, ranks)


@pytest.mark.parametrize("ranks", [2, 16, 100])
@pytest.mark.parametrize("budget", [1, 3000, 10**7])
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
