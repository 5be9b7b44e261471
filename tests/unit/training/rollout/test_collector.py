import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tepo.common.errors import Diverged, RunFailed
from tepo.common.randomness import derive
from tepo.config.compose import compose
from tepo.config.run_config import RunConfig
from tepo.problems.grader import Grader, GraderOptions
from tepo.problems.problem import Problem
from tepo.problems.rewards.own_rewards import OwnRewards
from tepo.sampling.sampler import Job, Response, SamplingParams
from tepo.store.early_stop import EarlyStop, Ending
from tepo.store.run_folder import RunFolder
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.rollout.collector import Collector
from tepo.training.rollout.dynamic_sampling import DynamicSampling
from tepo.training.rollout.group_stats import Rollout
from tepo.training.rollout.prompt_queue import PromptQueue
from tepo.training.rollout.prompt_stream import PromptStream, keep_first_prompt
from tepo.training.rollout_batch import Prompt
from tests.support.runs import small
from tests.support.samplers import LastBox
from tests.support.two_ranks import Exchange, on_two_ranks
from tests.unit.problems.chats import FAMILIES


class Numbers:
    """A stream whose prompt number i is the token i; a response is its text, letter by letter."""

    stop = ()

    def take(self, start: int, count: int) -> list[Prompt]:
        return [Prompt(number, Problem(str(number), "", "1"), [number]) for number in range(start, start + count)]

    def decode(self, responses: Sequence[Response]) -> list[str]:
        return ["".join(map(chr, response.tokens)) for response in responses]


@dataclass
class Clock:
    """A sampler whose responses run side by side, a token each tick, and groups end when their longest response does.

    answers: the responses to a prompt by its number, as (tokens, right?). side_by_side: see `Sampler`."""

    answers: Callable[[int], list[tuple[int, bool]]]
    side_by_side: int | None = None
    added: list[list[Job]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    now: int = 0
    running: dict[int, tuple[int, list[Response]]] = field(default_factory=dict)

    def start(self, params: SamplingParams) -> "Clock":
        self.params = params
        return self

    def add(self, jobs: Sequence[Job]) -> None:
        self.added.append(list(jobs))
        for job in jobs:
            answers = self.answers(job.number // 4)[job.first :][: self.params.n]
            assert job.number % 4 == job.first
            texts = [("\\boxed{1}" if right else "\\boxed{0}").rjust(length) for length, right in answers]
            rows = [np.array([*map(ord, text)], dtype=np.int32) for text in texts]
            group = [Response(row, np.zeros(len(row), np.float32), None, True) for row in rows]
            self.running[job.number] = (self.now + max(map(len, rows)), group)

    def finished(self, seconds: float | None = None) -> list[tuple[int, list[Response]]]:
        ends = {number: end for number, (end, _) in self.running.items()}
        if not ends:
            assert seconds is not None, "would wait for ever"
            time.sleep(min(seconds, 0.01))
            return []
        self.now = min(ends.values())
        done = [number for number, end in ends.items() if end == self.now]
        self.ended += [number // 4 for number in done]
        return [(number, self.running.pop(number)[1]) for number in done]

    def drop(self, numbers: Collection[int]) -> None:
        assert self.running.keys() >= set(numbers)
        self.aborted += sorted({number // 4 for number in numbers})
        self.running = {number: job for number, job in self.running.items() if number not in numbers}

    def abort(self) -> None:
        self.drop(list(self.running))


def side_by_side(answers: Sequence[list[tuple[int, bool]]]) -> Callable[[], Clock]:
    """A sampler that is given responses one by one."""
    return lambda: Clock(answers.__getitem__, side_by_side=16)


def every_third(number: int) -> list[tuple[int, bool]]:
    """One right answer of four to every third prompt, none to the others; later prompts end first."""
    return [(100 - number, number % 3 == 0 and index == 2) for index in range(4)]


def collected(
    config: RunConfig, sampler: Any = None, comm: Exchange | None = None, start: int = 0, before: int = 0, **aside: Any
) -> tuple[Rollout, Clock]:
    sampler = sampler or Clock(every_third)
    collector = Collector(config, Numbers(), sampler, LastBox(), comm, **aside)  # type: ignore[arg-type]
    return collector.collect(start, 5, before, StepMetrics()), sampler


def by_two_ranks(config: RunConfig, sampler: Callable[[], Clock], **more: Any) -> list[tuple[Rollout, Clock]]:
    return on_two_ranks(lambda exchange: collected(config, sampler(), exchange, **more))


def numbers(rollout: Rollout) -> list[int]:
    return [group.prompt.number for group in rollout.groups]


def drawn(rollout: Rollout) -> list[tuple[int, list[float], list[int]]]:
    return [(one.prompt.number, one.rewards.tolist(), [len(r.tokens) for r in one.responses]) for one in rollout.drawn]


@pytest.mark.parametrize(
    ("right", "kind"),
    [
        (lambda number: False, "collapse"),
        (lambda number: True, "saturation"),
        (lambda number: number == 3, "no signal"),
    ],
)
def test_ranks_agree_on_the_end_of_training(tmp_path: Path, right: Callable[[int], bool], kind: str) -> None:
    config = small(tmp_path, "train.max_rounds=2")

    def end(exchange: Exchange) -> Ending:
        sampler = Clock(lambda number: [(10, right(number))] * 4)
        with pytest.raises(EarlyStop) as caught:
            collected(config, sampler, exchange)
        return caught.value.ending

    one, other = on_two_ranks(end)
    assert one == other
    assert (one.kind, one.step) == (kind, 5)
    assert "16 prompts" in one.why


def test_what_ends_one_rank_ends_the_other(tmp_path: Path) -> None:
    config = small(tmp_path, "train.max_rounds=2")

    class Broken(Clock):
        def finished(self, seconds: float | None = None) -> list[tuple[int, list[Response]]]:
            raise Diverged("not numbers")

    def end(exchange: Exchange) -> None:
        sampler = (Broken if exchange.rank else Clock)(every_third)
        with pytest.raises(Diverged, match="not numbers" if exchange.rank else None):
            collected(config, sampler, exchange)

    on_two_ranks(end)


def test_prompts_are_added_until_the_cap(tmp_path: Path) -> None:
    """Eight are wanted, and at most 3 x 8 prompts are drawn, which hold as many."""
    config = small(tmp_path, "train.max_rounds=2", "train.temperature=0.7", "seed=3")
    rollout, sampler = collected(config, start=30)
    assert numbers(rollout) == [30, 33, 36, 39, 42, 45]
    assert [group.rewards.tolist() for group in rollout.groups] == [[0, 0, 1, 0]] * 6
    assert (rollout.consumed, rollout.left_over, rollout.all_have(1), rollout.all_have(0)) == (16, 0, 0, 10)
    assert [len(jobs) for jobs in sampler.added] == [8, 2, 2, 2, 2]
    jobs = list(chain(*sampler.added))
    assert [(job.number // 4, job.prompt, job.key) for job in jobs] == [
        (number, [number], derive(3, "rollout", 5, number)) for number in range(30, 46)
    ]
    assert sampler.params == SamplingParams(n=4, temperature=0.7, max_new_tokens=40)


def test_the_first_mixed_groups_are_taken_and_the_rest_is_given_up(tmp_path: Path) -> None:
    config = small(tmp_path, "train.max_rounds=20", "sampler.margin=3")
    rollout, sampler = collected(config, before=22)
    assert numbers(rollout) == list(range(0, 24, 3))
    assert rollout.consumed == 22  # the eighth is number 21
    assert [job.number // 4 for job in chain(*sampler.added)] == list(range(22 + rollout.left_over))
    assert rollout.left_over >= 44  # three times 22 are under way at first
    assert sampler.aborted == [number for number in range(22 + rollout.left_over) if number not in sampler.ended]


def test_whatever_ends_first_the_same_groups_are_trained(tmp_path: Path) -> None:
    draw = Random(0)
    answers = [[(draw.randint(10, 200), draw.random() < 0.2) for _ in range(4)] for _ in range(48)]
    mixed = [number for number, group in enumerate(answers) if 0 < sum(right for _, right in group) < 4]
    expected = mixed[:8]
    assert len(expected) == 8
    for margin in (1.0, 4.0):
        config = small(tmp_path, "train.max_rounds=6", f"sampler.margin={margin}")
        alone, sampler = collected(config, Clock(answers.__getitem__), before=draw.randint(0, 30))
        assert sampler.ended != sorted(sampler.ended)
        ranks = by_two_ranks(config, lambda: Clock(answers.__getitem__))
        one_by_one = by_two_ranks(config, side_by_side(answers))
        for rollout in (alone, *(rollout for rollout, _ in [*ranks, *one_by_one])):
            assert numbers(rollout) == expected
            assert rollout.consumed == expected[-1] + 1
            assert drawn(rollout) == drawn(alone)


def test_a_reward_of_the_whole_group_is_given_it_whoever_draws_its_responses(tmp_path: Path) -> None:
    """Also of a sampler that is otherwise given responses one by one, on two ranks."""
    text = "def reward(problem, responses):\n    return [len(text) == max(map(len, responses)) for text in responses]\n"
    (tmp_path / "longest.py").write_text(text)
    config = small(tmp_path, f"data.reward={tmp_path / 'longest.py'}")
    answers = [[(10 + (7 * number + 3 * index) % 41, False) for index in range(4)] for number in range(48)]
    clock = side_by_side(answers)
    with Grader(GraderOptions(workers=1)) as grader, OwnRewards(config.data.reward, grader) as own:
        alone, sampler = collected(config, clock(), own=own)
        ranks = by_two_ranks(config, clock, own=own)
    assert {job.first for jobs in sampler.added for job in jobs} == {0}
    for rollout in (alone, *(rollout for rollout, _ in ranks)):
        assert numbers(rollout) == list(range(8))
        for group in rollout.groups:
            lengths = [length for length, _ in answers[group.prompt.number]]
            assert group.rewards.tolist() == [float(length == max(lengths)) for length in lengths]


def test_the_ranks_of_an_engine_sample_the_same_prompts_and_one_of_them_grades(tmp_path: Path) -> None:
    config = small(tmp_path, "train.max_rounds=20", "sampler.tensor_parallel=2")
    alone, single = collected(config)
    ranks = by_two_ranks(config, lambda: Clock(every_third))
    for rollout, sampler in ranks:
        assert numbers(rollout) == numbers(alone)
        assert drawn(rollout) == drawn(alone)  # each group counts once
        assert sampler.added[0] == single.added[0]
    assert ranks[0][1].added == ranks[1][1].added
    assert ranks[0][1].ended == ranks[1][1].ended


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
