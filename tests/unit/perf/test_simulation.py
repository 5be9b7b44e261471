"""The simulated step: bounds are bounds, no token is lost, and every schedule trains the same groups."""

from dataclasses import replace
from pathlib import Path

import pytest

from perf import simulate_sizes
from perf.simulate_cpu import CpuRate, fit, simulated
from perf.simulate_cpu_ranks import Replayed, replay
from tepo.config.compose import compose
from tepo.planning.simulator import evaluations, published, schedules, updates
from tepo.planning.simulator.cards import Decoding, Training
from tepo.planning.simulator.clocked_sampler import Engine
from tepo.planning.simulator.engine_sizes import FIXED, engine_sizes
from tepo.planning.simulator.schedules import Setup
from tepo.planning.simulator.workload import PROMPT, Lognormal, MeasuredLengths
from tepo.policy.model.shapes import KNOWN
from tepo.store.samples_file import table_of, write_table
from tepo.training.resources.gpu_cards import H100

SHAPE = KNOWN["Qwen/Qwen2.5-7B"]
DECODING = Decoding(H100, SHAPE, 0.4, 64)
WORKLOAD = Lognormal(200, 800)


def setup(engines: int = 2) -> Setup:
    config = compose(["scale=paper", "train.prompts_per_step=8", "train.samples_per_prompt=4", *FIXED])
    return Setup(config, DECODING, engines, WORKLOAD)


def tokens(start: int, count: int) -> int:
    return sum(sum(WORKLOAD.group(number, 4).lengths) for number in range(start, start + count))


def test_no_rollout_beats_its_bound_and_the_queue_beats_rounds() -> None:
    queue, rounds = schedules.by_queue(setup(), 0, 16), schedules.by_rounds(setup(), 0)
    verl = schedules.by_generation_batches(setup(), 0, 3)
    for rollout in (queue, rounds, verl):
        assert rollout.seconds >= rollout.least > 0
        assert 0 < rollout.busy <= 1
    assert queue.seconds < rounds.seconds
    assert rounds.rounds > 1


def test_no_token_is_lost() -> None:
    rounds, verl = schedules.by_rounds(setup(), 5), schedules.by_generation_batches(setup(), 5, 3)
    assert rounds.drawn == tokens(5, rounds.consumed)
    assert verl.drawn == tokens(5, verl.consumed)
    queue = schedules.by_queue(setup(), 5, 16)
    assert queue.drawn >= tokens(5, queue.consumed)  # and what was given up


@pytest.mark.parametrize("engines", [1, 2, 5])
def test_the_same_groups_on_any_number_of_engines(engines: int) -> None:
    """The first mixed ones in prompt order."""
    mixed = [number for number in range(100) if 0 < WORKLOAD.group(number, 4).right < 4][:8]
    expected = [WORKLOAD.group(number, 4).lengths for number in mixed]
    assert schedules.by_queue(setup(engines), 0, 0).lengths == expected
    assert schedules.by_queue(setup(engines), 0, 30).lengths == expected
    assert schedules.by_rounds(setup(engines), 0).lengths == expected
    assert schedules.by_generation_batches(setup(engines), 0, 3).lengths == expected


def test_the_simulation_is_the_same_each_time() -> None:
    assert schedules.by_queue(setup(3), 0, 0) == schedules.by_queue(setup(3), 0, 0)


def test_one_row_takes_its_steps_and_its_prompt() -> None:
    engine = Engine(DECODING)
    engine.add("only", 500)
    assert engine.run(float("inf")) == ["only"]
    assert engine.clock == pytest.approx(DECODING.prefill(PROMPT) + DECODING.seconds(500, 1, PROMPT))
    assert engine.cached == 0


def test_an_engine_stops_at_the_time_it_is_given() -> None:
    engine = Engine(DECODING)
    engine.add("long", 5000)
    step = DECODING.seconds(1, 1, PROMPT + 5000)
    for until in (0.25, 0.5, 0.75):
        assert engine.run(until) == []
        assert until <= engine.clock <= until + step


def test_a_full_cache_preempts_and_loses_nothing() -> None:
    engine = Engine(DECODING)
    engine.capacity = 2500
    for number in range(10):
        engine.add(number, 600)
    ended = []
    while done := engine.run(float("inf")):
        assert engine.cached <= engine.capacity
        ended += done
    assert sorted(ended) == list(range(10))
    assert engine.preempted > 0
    assert engine.tokens == 6000


def test_dealing_by_cost_is_no_slower_than_by_groups() -> None:
    config = setup().config
    lengths = schedules.by_rounds(setup(), 0).lengths
    training = Training(H100, SHAPE, 4)
    even, groups = updates.ours(training, config, lengths), updates.ours(training, config, lengths, balanced=False)
    assert even.updates <= groups.updates
    assert 1 <= even.imbalance <= groups.imbalance
    alone = replace(training, ranks=1)
    assert updates.ours(alone, config, lengths).imbalance == 1


def test_lengths_have_the_mean_and_the_share_of_mixed_groups_that_were_asked_for() -> None:
    workload = Lognormal(2000, 8192, kept=0.3)
    groups = [workload.group(number, 8) for number in range(2000)]
    lengths = [length for group in groups for length in group.lengths]
    assert sum(lengths) / len(lengths) == pytest.approx(2000, rel=0.05)
    assert max(lengths) == 8192
    assert sum(0 < group.right < 8 for group in groups) / 2000 == pytest.approx(0.3, abs=0.04)


def test_lengths_of_a_real_evaluation(tmp_path: Path) -> None:
    rows = [
        {"problem": problem, "sample": sample, "tokens": 10 * (sample + 1), "correct": problem == "a" and sample == 1}
        for problem in "ab"
        for sample in range(2)
    ]
    write_table(tmp_path / "samples.parquet", table_of(rows))
    workload = MeasuredLengths(tmp_path / "samples.parquet")
    first, second = workload.group(0, 8), workload.group(1, 8)
    assert set(first.lengths) <= {10, 20}
    assert first.lengths[: first.right] == [20] * first.right, "the right ones come first, with their lengths"
    assert second.right == 0
    assert workload.limit == 20


def test_an_evaluation_draws_the_same_samples_on_any_number_of_engines() -> None:
    found, one = evaluations.dealt(setup(3)), evaluations.dealt(setup(1))
    assert (found.samples, found.least * 3) == (8844, pytest.approx(one.least))
    assert found.least <= found.seconds < one.seconds
    assert 0 <= found.idle < 0.1
    assert one.seconds < evaluations.in_blocks(setup(1), 8844, 64).seconds


def test_the_papers_benchmarks_take_minutes_on_a_node() -> None:
    """Of a 7B at 8k, on 8 H100 that it shares with nothing."""
    long = Setup(compose(["scale=paper"]), Decoding(H100, SHAPE, 0.85, 256), 8, Lognormal(2000, 8192))
    found = evaluations.dealt(long)
    assert found.seconds < 6 * 60
    assert found.idle < 0.1


@pytest.mark.disaster
def test_the_published_step_comes_out() -> None:
    checks, _ = published.check()
    assert [one.phase for one in checks if one.judged and not one.holds] == []


def test_constants_of_a_real_engine_are_recovered() -> None:
    """From calls of several sizes, some with more rows than run side by side."""
    true = CpuRate(0.002, 1e-5, 1e-6, 1e-3)
    lists = [[(5 + number % 3, 10 + 7 * number % 50) for number in range(rows)] for rows in (4, 16, 64, 128, 200)]
    found = fit([(len(call), simulated(true, call), call) for call in lists])
    other = [(9, 3 + 11 * number % 60) for number in range(90)]
    assert simulated(found, other) == pytest.approx(simulated(true, other), rel=1e-6)


def test_parts_of_a_step_add_up_and_the_largest_is_the_bottleneck() -> None:
    overrides = ["train.prompts_per_step=256", "train.samples_per_prompt=2", "train.mini_batch_prompts=64"]
    size = simulate_sizes.of_size(2, Lognormal(20, 80), overrides)
    assert size.sequences == 512
    assert all(value >= 0 for value in size.parts.values())
    case = Setup(compose(["scale=paper", *FIXED, *overrides]), DECODING, 2, Lognormal(20, 80))
    assert size.longest == pytest.approx(DECODING.seconds(80, 1, PROMPT))
    assert size.bottlenecks[0] == max(size.parts, key=lambda name: size.parts[name])
    trained = updates.ours(Training(H100, SHAPE, 2), case.config, schedules.by_queue(case, 0, 512).lengths)
    spent = size.computing + size.imbalance + size.exchange
    assert spent == pytest.approx(trained.logprobs + trained.updates)


def test_python_takes_longer_for_more_sequences() -> None:
    config = setup().config
    few, many = (simulate_sizes.python_seconds(config, [[50] * 4] * count, 2) for count in (8, 256))
    assert many > 2 * few > 0


def test_a_rollout_of_two_ranks_is_replayed_with_what_it_drew() -> None:
    """Every token costs the same here, whoever draws it; on a machine that is three times as slow by the clock too."""
    lengths = [10, 20, 30, 40, 3, 3, 3, 3, 64, 64, 64, 64, 1, 2, 3, 4]  # of the prompts 7 to 10
    parts = [{str(28 + index): [5, lengths[index]] for index in range(rank, 16, 2)} for rank in range(2)]
    row = {"prompts": 4, "rounds": 1, "start": 7, "cpu": [0.2, 0.1], "wall": 0.6, "parts": parts, "right": [1] * 4}
    assert sum(replay(CpuRate(0, 0.001, 0, 0), row)) == pytest.approx(0.001 * sum(lengths))


def test_a_response_that_no_rank_finished_is_like_another() -> None:
    found = Replayed({28: 10, 30: 30}, {7: 2}).group(7, 4)
    assert (found.lengths[0], found.lengths[2], found.right) == (10, 30, 2)
    assert set(found.lengths) == {10, 30}


def test_an_engine_over_several_gpus_reads_less_on_each_and_waits_for_the_others() -> None:
    fourteen = KNOWN["Qwen/Qwen3-14B"]
    alone, two, eight = (Decoding(H100, fourteen, 0.6, 256, tensor=size) for size in (1, 2, 8))
    assert two.capacity > 2 * alone.capacity  # the weights are there once
    assert alone.seconds(1, 1, PROMPT) / 2 < two.seconds(1, 1, PROMPT) < alone.seconds(1, 1, PROMPT)
    assert 8 * eight.seconds(1, 256, 10_000) > 2 * two.seconds(1, 256, 10_000) > alone.seconds(1, 256, 10_000)
    assert two.prefill(1000) > alone.prefill(1000) / 2
    small = KNOWN["Qwen/Qwen2.5-1.5B"]  # two key-value heads: on four GPUs each is there twice
    cut = [Decoding(H100, small, 0.6, 256, tensor=size).capacity for size in (2, 4)]
    assert cut[1] < 1.1 * cut[0]


def test_a_larger_model_gains_by_engines_of_two_gpus() -> None:
    rows = {row.size: row for row in engine_sizes("qwen3-14b", 8, WORKLOAD)}
    assert set(rows) == {1, 2, 4, 8}
    assert rows[2].total < rows[1].total
    for row in rows.values():
        assert row.rollout >= row.least > 0
        assert 0 < row.busy <= 1
