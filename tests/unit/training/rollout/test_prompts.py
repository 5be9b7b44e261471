import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tepo.common.errors import RunFailed
from tepo.config.compose import compose
from tepo.problems.problem import Problem
from tepo.store.run_folder import RunFolder
from tepo.training.rollout.dynamic_sampling import DynamicSampling
from tepo.training.rollout.prompt_queue import PromptQueue
from tepo.training.rollout.prompt_stream import PromptStream, keep_first_prompt
from tests.unit.problems.chats import FAMILIES

ESCAPE = "red \x1b[31m\u202e here\n1+1?"


def stream() -> PromptStream:
    config = compose(["model=some/one", "data.kind=problems", "data.problems=x.jsonl", "data.prompt='{problem}'"])
    return PromptStream(config, FAMILIES["base asked by ChatML"]()[0], [Problem("p0\x1b", ESCAPE, "1")])


def test_the_first_prompt_is_stored_and_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its control tokens and without escapes."""
    run, asked = RunFolder(tmp_path), stream()
    keep_first_prompt(asked, run)
    said = capsys.readouterr().err
    assert "p0\\x1b" in said
    assert "«<|im_start|>»user\n| red \\x1b[31m\\u202e here\n| 1+1?«<|im_end|>»" in said
    text = run.prompt_file.read_text()
    kept = json.loads(text)
    assert (kept["tokens"], kept["stop"]) == (asked.take(0, 1)[0].tokens, list(asked.stop))
    assert not {"\x1b", "\u202e"} & set(text)
    keep_first_prompt(stream(), run)
    assert (capsys.readouterr().err, run.prompt_file.read_text()) == ("", text)
    for other in ("", json.dumps({**kept, "stop": []}), json.dumps({**kept, "tokens": [1]})):
        run.prompt_file.write_text(other)
        with pytest.raises(RunFailed, match="another one than when the run began"):
            keep_first_prompt(stream(), run)


SIZE = 4


def plain_refills(mixed: Sequence[bool], count: int, cap: int) -> tuple[list[int], int]:
    """Draw as many prompts as groups are missing, wait for all of them, and again: what is taken, what is consumed."""
    taken: list[int] = []
    drawn = 0
    while len(taken) < count and drawn < cap:
        more = min(count - len(taken), cap - drawn)
        taken += [number for number in range(drawn, drawn + more) if mixed[number]]
        drawn += more
    return taken, drawn


@given(
    count=st.integers(1, 12),
    rounds=st.integers(1, 5),
    before=st.integers(0, 70),
    margin=st.floats(1, 5),
    block=st.sampled_from([1, 2, 7]),
    share=st.sampled_from([0.0, 0.03, 0.3, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_what_is_taken_is_what_plain_refills_take(
    count: int, rounds: int, before: int, margin: float, block: int, share: float, seed: int
) -> None:
    """Whatever response is graded first, and none beyond the end once it is known."""
    order, cap = Random(seed), rounds * count
    right = [[order.random() < share for _ in range(SIZE)] for _ in range(cap)]
    choice = DynamicSampling(100, count, cap, before, margin, SIZE, block)
    added: list[int] = []
    under_way: list[int] = []
    end = 100 + cap
    while not choice.complete:
        new = [number for numbers in choice.blocks() for number in numbers]
        added += new
        under_way += [number for number in new for _ in range(SIZE)]
        assert under_way, "nothing to wait for"
        order.shuffle(under_way)
        number = under_way.pop()
        choice.grade(number, [right[number - 100][choice.graded[number]]])
        assert choice.end <= end
        end = choice.end
        under_way = [number for number in under_way if number < end]
    taken, consumed = plain_refills([0 < sum(group) < SIZE for group in right], count, cap)
    assert ([number - 100 for number in choice.taken], choice.end) == (taken, 100 + consumed)
    assert added == list(range(100, 100 + choice.added))
    assert consumed <= choice.added <= cap


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


def test_a_sampler_that_decodes_blocks_is_dealt_them_by_place() -> None:
    """Whoever was faster: complete groups of each block, in turn from the first rank."""
    shared = PromptQueue(2, SIZE, None)
    shared.add(range(10, 15))
    assert shared.deal() == [[40, 48, 56], [44, 52]]
    shared.ended([40, 48, 56])
    shared.add(range(15, 18))
    assert shared.deal() == [[60, 68], [64]]
