from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tepo.training.rollout.dynamic_sampling import DynamicSampling

SIZE = 4


def draw_of(start: int, count: int, cap: int, before: int, margin: float, block: int | None = None) -> DynamicSampling:
    """block: a quarter of the groups unless it is given."""
    return DynamicSampling(start, count, cap, before, margin, SIZE, block or -(-count // 4))


def grade(choice: DynamicSampling, number: int, mixed: bool) -> None:
    choice.grade(number, [mixed, *[False] * (SIZE - 1)])


def plain_refills(mixed: Sequence[bool], count: int, cap: int) -> tuple[list[int], int]:
    """Draw as many prompts as groups are missing, wait for all of them, and again: what is taken, what is consumed."""
    taken: list[int] = []
    drawn = 0
    while len(taken) < count and drawn < cap:
        more = min(count - len(taken), cap - drawn)
        taken += [number for number in range(drawn, drawn + more) if mixed[number]]
        drawn += more
    return taken, drawn


def finished(choice: DynamicSampling, mixed: Sequence[bool], order: Random) -> list[range]:
    """Play a step whose groups become known in a random order; the blocks that were added."""
    blocks: list[range] = []
    under_way: list[int] = []
    while not choice.complete:
        for block in choice.blocks():
            blocks.append(block)
            under_way += list(block)
        assert under_way, "nothing to wait for"
        order.shuffle(under_way)
        for _ in range(order.randint(0, len(under_way))):
            number = under_way.pop()
            grade(choice, number, mixed[number - choice.start])
    return blocks


@given(
    count=st.integers(1, 12),
    rounds=st.integers(1, 5),
    before=st.integers(0, 70),
    margin=st.floats(1, 5),
    share=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_what_is_taken_is_what_plain_refills_take(
    count: int, rounds: int, before: int, margin: float, share: float, seed: int
) -> None:
    order, cap = Random(seed), rounds * count
    mixed = [order.random() < share for _ in range(cap)]
    choice = draw_of(100, count, cap, before, margin)
    blocks = finished(choice, mixed, order)
    taken, consumed = plain_refills(mixed, count, cap)
    assert [number - 100 for number in choice.taken] == taken
    assert choice.end == 100 + consumed

    assert [number for block in blocks for number in block] == list(range(100, 100 + choice.added))
    assert consumed <= choice.added <= cap
    everything = draw_of(100, count, cap, before, 1e9)  # adds all at once: the same bounds
    assert blocks == list(everything.blocks())[: len(blocks)]


@pytest.mark.parametrize(
    ("before", "margin", "sizes"),
    [
        (0, 1.0, [64]),
        (100, 1.0, [100]),
        (100, 1.2, [100, 16, 16]),  # 120 are wanted
        (100, 1.33, [100, 16, 16, 16]),
        (30, 1.0, [64]),
        (1000, 1.0, [640]),
        (600, 3.0, [600, 16, 16, 8]),
    ],
)
def test_the_step_before_says_how_many_are_added_at_first(before: int, margin: float, sizes: list[int]) -> None:
    choice = draw_of(0, 64, 640, before, margin)
    assert [len(block) for block in choice.blocks()] == sizes
    assert list(choice.blocks()) == []


@pytest.mark.parametrize(
    ("margin", "mixed", "more"),
    [
        (
            1.0,
            60,
            1,
        ),  # 4 are missing; the rate is (60 + 8) / (128 + 16), as the step before counts like 16 with 8 mixed
        (2.0, 60, 2),
        (1.0, 32, 8),
        (1.0, 0, 32),  # the cap
        (1.0, 64, 0),
    ],
)
def test_later_the_keep_rate_of_the_step_says_it(margin: float, mixed: int, more: int) -> None:
    choice = draw_of(0, 64, 640, 128, 1.0)
    assert [len(block) for block in choice.blocks()] == [128]
    choice.margin = margin
    for number in range(128):
        grade(choice, number, number < mixed)
    assert [len(block) for block in choice.blocks()] == [16] * more


@pytest.mark.parametrize(("margin", "more"), [(1.0, 0), (1.001, 32)])
def test_without_a_margin_nothing_is_added_on_a_guess(margin: float, more: int) -> None:
    choice = draw_of(0, 64, 640, 128, 1.0)
    list(choice.blocks())
    choice.margin = margin
    for number in range(127):
        grade(choice, number, False)
    assert len(list(choice.blocks())) == more
    grade(choice, 127, False)
    assert len(list(choice.blocks())) == 32 - more


@given(seed=st.integers(0, 2**32), margin=st.floats(1, 4), block=st.sampled_from([1, 2, 7]))
def test_the_first_mixed_groups_are_taken_whatever_response_is_graded_first(
    seed: int, margin: float, block: int
) -> None:
    """Responses graded one by one in any order, and none beyond the end once it is known."""
    order = Random(seed)
    right = [[order.random() < 0.3 for _ in range(SIZE)] for _ in range(60)]
    mixed = [0 < sum(group) < SIZE for group in right]
    choice = draw_of(0, 6, 60, order.randint(0, 30), margin, block)
    under_way: list[int] = []
    end = 60
    while not choice.complete:
        under_way += [number for added in choice.blocks() for number in added for _ in range(SIZE)]
        order.shuffle(under_way)
        number = under_way.pop()
        graded = choice.graded[number]
        choice.grade(number, [right[number][graded]])
        assert choice.end <= end
        end = choice.end
        under_way = [number for number in under_way if number < end]
    taken, consumed = plain_refills(mixed, 6, 60)
    assert (choice.taken, choice.end) == (taken, consumed)
