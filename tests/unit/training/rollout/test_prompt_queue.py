from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tepo.training.rollout.prompt_queue import PromptQueue

SIZE = 4


@given(ranks=st.integers(1, 5), side_by_side=st.integers(1, 40), seed=st.integers(0, 2**32), whole=st.booleans())
def test_every_response_is_dealt_once_or_given_up(ranks: int, side_by_side: int, seed: int, whole: bool) -> None:
    """In prompt order, alone or as a group, to a rank that has room; what ended or was given up leaves room."""
    draw, shared = Random(seed), PromptQueue(ranks, SIZE, side_by_side, whole)
    step = SIZE if whole else 1
    room = max(1, (side_by_side + side_by_side // 4) // step)
    dealt: list[int] = []
    under_way: list[set[int]] = [set() for _ in range(ranks)]
    given_up: set[int] = set()
    added, end = 0, 30
    for _ in range(12):
        more = draw.randint(0, 5) if added < end else 0
        shared.add(range(added, added + more))
        added += more
        new = shared.deal()
        dealt += sorted(part for parts in new for part in parts)
        for rank, parts in enumerate(new):
            under_way[rank] |= set(parts)
        assert shared.load == [len(parts) for parts in under_way]
        most = max(shared.load)
        assert ranks == 1 or most <= room
        assert not shared.waiting or min(shared.load) == most
        for parts in under_way:
            ended = draw.sample(sorted(parts), draw.randint(0, len(parts)))
            shared.ended(ended)
            parts -= set(ended)
        if draw.random() < 0.1:
            end = min(end, draw.randint(0, added))
            dropped = set(shared.give_up(end))
            assert dropped == {part for parts in under_way for part in parts if part >= end * SIZE}
            shared.ended(dropped)  # graded in the same moment: changes nothing
            for parts in under_way:
                parts -= dropped
            given_up |= {part for part in range(end * SIZE, added * SIZE, step) if part not in dealt}
    assert dealt == sorted(set(dealt))
    assert {*dealt, *shared.waiting, *given_up} == set(range(0, added * SIZE, step))


@pytest.mark.parametrize("ended", [False, True])
def test_a_sampler_that_decodes_blocks_is_dealt_them_by_place(ended: bool) -> None:
    """Whoever was faster: complete groups of each block, in turn from the first rank."""
    shared = PromptQueue(2, SIZE, None)
    shared.add(range(10, 15))
    assert shared.deal() == [[40, 48, 56], [44, 52]]
    if ended:
        shared.ended([40, 48, 56])
    shared.add(range(15, 18))
    assert shared.deal() == [[60, 68], [64]]
