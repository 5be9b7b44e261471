"""The queue that all ranks share: what is drawn once, by whom, and what is given up."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tepo.config.compose import compose
from tepo.objectives.testing.simulated_ranks import SimulatedRank, on_ranks
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.rollout.collector import Collector
from tepo.training.rollout.group_stats import Rollout
from tepo.training.rollout.prompt_queue import PromptQueue
from tests.unit.training.rollout.clocked_ranks import (
    AtOnce,
    ClockedRank,
    ClockedSampler,
    Engine,
    Judge,
    Stream,
    Workload,
)

SIZE = 4
TOKEN = 0.01  # seconds


@given(ranks=st.integers(1, 5), side_by_side=st.integers(1, 9), seed=st.integers(0, 2**32))
def test_every_response_is_dealt_once_or_given_up(ranks: int, side_by_side: int, seed: int) -> None:
    """In prompt order, to a rank that has room; what ended or was given up leaves room for others."""
    draw, shared = Random(seed), PromptQueue(ranks, SIZE, side_by_side)
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
        assert ranks == 1 or most <= side_by_side + side_by_side // 4
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
            given_up |= {part for part in range(end * SIZE, added * SIZE) if part not in dealt}
    assert dealt == sorted(set(dealt))
    assert {*dealt, *shared.waiting, *given_up} == set(range(added * SIZE))


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


def collected(engines: list[Engine], workload: Workload, margin: float = 1.2, before: int = 0) -> list[Rollout]:
    """The rollout of each rank, of which each has an engine."""
    words = (f"train.prompts_per_step=6 train.samples_per_prompt={SIZE} sampler.margin={margin}").split()
    config = compose(["scale=paper", *words, "train.mini_batch_prompts=3"])

    def collect(simulated: SimulatedRank) -> Rollout:
        engine = engines[simulated.rank]
        sampler, comm = ClockedSampler(engine, workload), ClockedRank(simulated, engine)
        collector = Collector(config, Stream(), sampler, Judge(), comm, AtOnce)  # type: ignore[arg-type]
        return collector.collect(100, 1, before, StepMetrics())

    return on_ranks(collect, len(engines))


@settings(max_examples=15, deadline=None)
@given(
    speeds=st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=1, max_size=5),
    margin=st.sampled_from([1.0, 1.2, 3.0]),
    before=st.integers(0, 30),
    seed=st.integers(0, 1000),
)
def test_the_same_groups_for_any_ranks_speeds_and_margin(
    speeds: list[float], margin: float, before: int, seed: int
) -> None:
    workload = Workload(SIZE, seed)
    mixed = [number for number in range(100, 160) if 0 < workload.group(number)[1] < SIZE][:6]
    engines = [Engine(times * TOKEN) for times in speeds]
    for rollout in collected(engines, workload, margin, before):
        assert [group.prompt.number for group in rollout.groups] == mixed
        lengths = [[len(response.tokens) for response in group.responses] for group in rollout.groups]
        assert lengths == [workload.group(number)[0] for number in mixed]
        assert [sum(group.rewards) for group in rollout.groups] == [workload.group(n)[1] for n in mixed]
        assert rollout.consumed == mixed[-1] - 99
    drawn = Counter(number for engine in engines for number, _ in engine.given)
    assert set(drawn.values()) == {1}
    assert set(drawn) >= set(range(100 * SIZE, (mixed[-1] + 1) * SIZE))
    for engine in engines:
        assert not engine.running
        assert not engine.waiting


def test_a_slow_engine_draws_fewer() -> None:
    """It has as many under way as the others, and ends fewer of them."""
    engines = [Engine(times * TOKEN) for times in (1, 3, 1)]
    collected(engines, Workload(SIZE, kept=0.2))
    first, slow, last = (len(engine.given) for engine in engines)
    assert slow < 0.7 * min(first, last)
    assert abs(first - last) < 0.2 * first
