import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tepo.policy.packing.packing import pack, split_by_tokens


def test_layout_of_two_groups():
    packed = pack([([5, 6], [[1, 2, 3], [4]]), ([7], [[8, 9]])])
    assert packed.tokens.tolist() == [5, 6, 1, 2, 7, 8]
    assert packed.positions.tolist() == [0, 1, 2, 3, 0, 1]
    assert packed.targets.tolist() == [1, 2, 3, 4, 8, 9]
    assert packed.rows.tolist() == [1, 2, 3, 1, 4, 5]
    assert packed.lengths.tolist() == [3, 1, 2]


def test_an_empty_response_trains_nothing():
    packed = pack([([5, 6], [[], [1, 2], []])])
    assert packed.tokens.tolist() == [5, 6, 1]
    assert packed.rows.tolist() == [1, 2]
    assert packed.lengths.tolist() == [0, 2, 0]


@pytest.mark.parametrize("groups", [[], [([], [[1]])]])
def test_nothing_to_predict_from_is_refused(groups):
    with pytest.raises(ValueError, match="at least one"):
        pack(groups)


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
