"""What a plan simulates: it runs what a run would run, and stays above what the hardware allows."""

from dataclasses import replace
from statistics import fmean

import pytest

from tepo.config.compose import compose
from tepo.config.run_config import chosen
from tepo.planning import step_time
from tepo.planning.fit import fit
from tepo.planning.gpus import KEPT_SHARE, machines
from tepo.planning.simulator import cards, schedules, updates
from tepo.planning.simulator.workload import PROMPT, Lognormal
from tepo.policy.model.shapes import KNOWN
from tepo.training.resources.gpu_cards import H100 as H100_CARD
from tepo.training.resources.gpu_cards import Card
from tests.integration.commands import python

SMALL = ("train.prompts_per_step=8", "train.samples_per_prompt=4", "train.mini_batch_prompts=8")
SHORT = (*SMALL, "train.max_new_tokens=1024")
BY_NAME = {machine.name: machine for machine in machines()}
H100 = BY_NAME["8 H100"]
SEVEN = KNOWN["Qwen/Qwen2.5-7B"]


def test_a_step_is_that_of_the_simulator() -> None:
    found = fit(compose(["scale=paper", *SHORT]), H100)
    config, memory = found.config, found.memory
    decoding = cards.Decoding(H100_CARD, SEVEN, 0.5, chosen(config.sampler.max_rows))
    workload = Lognormal(256, 1024, kept=KEPT_SHARE)
    share = (memory.cache + 2 * SEVEN.parameters + cards.WORK) / H100.card.bytes
    setup = schedules.Setup(config, replace(decoding, memory=share), 8, workload)
    drawn = [rollout for _, rollout in schedules.in_turn(setup, step_time.STEPS, 16)]
    done = [updates.ours(cards.Training(H100_CARD, SEVEN, 8), config, rollout.lengths) for rollout in drawn]
    assert found.time.rollout == pytest.approx(fmean(rollout.seconds for rollout in drawn))
    assert found.time.logprobs == pytest.approx(fmean(one.logprobs for one in done))
    assert found.time.updates == pytest.approx(fmean(one.updates for one in done))
    assert found.time.sync == cards.SYNC


def test_a_planned_step_has_the_refills_of_steps_in_turn() -> None:
    """One that consumes more than the step before it draws again, and waits again; with a margin of one at once."""
    card, shape = BY_NAME["1 H100"], KNOWN["Qwen/Qwen2.5-0.5B"]
    found = fit(compose(["scale=single_gpu", "sampler=torch"]), card)
    config = found.config
    setup = schedules.Setup(
        config, step_time._decoding(config, shape, card, found.memory), 1, Lognormal(256, 1024), True
    )
    (_, more), (start, less) = schedules.in_turn(setup, 2, 128)
    assert more.consumed > 128 > start - less.consumed
    assert found.time.rollout == pytest.approx((more.seconds + less.seconds) / 2)
    assert more.seconds > schedules.by_queue(setup, 0, more.consumed).seconds


@pytest.mark.parametrize(
    ("path", "share"),
    [
        ("Qwen/Qwen2.5-0.5B", 0.111),
        ("Qwen/Qwen3-0.6B-Base", 0.111),
        ("Qwen/Qwen2.5-1.5B", 0.111 + 0.25 * 512 / 1536),
        ("Qwen/Qwen2.5-7B", 0.361),
    ],
)
def test_small_models_use_less_of_a_card(path: str, share: float) -> None:
    """The published MFU by width, of three passes, where recomputation makes four."""
    shape = KNOWN[path]
    seconds = cards.Training(H100_CARD, shape, 1).forward(1000, 0.0)
    assert 3 * shape.forward_operations(1000, 0.0) / (4 * seconds) == pytest.approx(share * 989e12, rel=0.05)


def test_a_reference_policy_is_a_second_pass_and_recomputation_one_more_in_updates() -> None:
    plain = fit(compose(["scale=paper", *SHORT]), H100)
    anchored = fit(plain.config, H100, reference=True)
    assert anchored.time.logprobs == pytest.approx(2 * plain.time.logprobs)
    kept = fit(compose(["scale=paper", *SHORT, "model.gradient_checkpointing=false"]), BY_NAME["8 H200"])
    again = fit(plain.config, BY_NAME["8 H200"])
    fast = replace(H100_CARD, bandwidth=BY_NAME["8 H200"].card.bandwidth)
    train = plain.config.train
    optimiser = train.epochs * train.mini_batches * cards.Training(fast, SEVEN, 8).optimiser_step()
    assert (again.time.updates - optimiser) == pytest.approx(4 / 3 * (kept.time.updates - optimiser))


def test_a_smaller_card_is_nearer_to_what_it_could_do() -> None:
    """Published beside the H100's 11.90k tokens a second of Qwen3-0.6B: 3.69k of an A6000."""
    shape, a6000 = KNOWN["Qwen/Qwen3-0.6B-Base"], Card("A6000", 48 * cards.GIB, 155e12, 0.768e12)
    small, large = (cards.Training(card, shape, 1).forward(16_384, 16_384.0**2) for card in (a6000, H100_CARD))
    assert small / large == pytest.approx(11.90 / 3.69, rel=0.02)


def test_adapters_need_no_gradient_of_the_weights() -> None:
    words = ("scale=single_gpu", *SHORT, "model.gradient_checkpointing=true")
    configs = [compose([*words, f"model.lora_rank={rank}"]) for rank in (0, 32)]
    full, lora = (fit(config, BY_NAME["1 H100"]).time for config in configs)
    assert lora.updates == pytest.approx(0.75 * full.updates)


@pytest.mark.parametrize("size", [2, 4])
def test_an_engine_over_several_gpus_is_one_that_draws(size: int) -> None:
    """Its weights are there once, so a plan that proposes it has the rollout that it brings."""
    words = ("scale=paper", *SHORT, "sampler.max_rows=256")
    whole, cut = (fit(compose([*words, f"sampler.tensor_parallel={each}"]), H100) for each in (1, size))
    share = (cut.memory.cache + 2 * SEVEN.parameters / size + cards.WORK) / H100.card.bytes
    decoding = cards.Decoding(H100_CARD, SEVEN, share, 256, size)
    assert decoding.capacity == pytest.approx(cut.memory.cache / (2 * SEVEN.cut_cache_numbers(size)), abs=1)
    setup = schedules.Setup(whole.config, decoding, 8 // size, Lognormal(256, 1024, kept=KEPT_SHARE))
    drawn = schedules.in_turn(setup, step_time.STEPS, 16)
    assert cut.time.rollout == pytest.approx(fmean(rollout.seconds for _, rollout in drawn))
    assert cut.time.updates == whole.time.updates


def test_what_is_drawn_beside_the_updates_hides_the_shorter_of_both() -> None:
    overrides = ["scale=paper", *SHORT, "sampler=vllm_server"]
    turn, beside = (fit(compose([*overrides, f"train.staleness={stale}"]), H100).time for stale in (0, 1))
    assert turn.rollout == beside.rollout
    assert beside.total == pytest.approx(turn.total - min(turn.rollout, turn.updates + turn.offload))


@pytest.mark.parametrize(
    ("machine", "longer", "shorter", "times"),
    [
        ("8 H100", "scale=paper sampler.margin=1", "scale=paper sampler.margin=1.2", 1.2),  # what is drawn again waits
        ("1 H100", "scale=single_gpu sampler=torch", "scale=single_gpu sampler=vllm", 1.2),  # for a batch's longest
        ("8 H100", "scale=paper model=qwen3-14b", "scale=paper model=qwen3-14b sampler.tensor_parallel=2", 1.0),
    ],
)
def test_what_makes_a_rollout_longer(machine: str, longer: str, shorter: str, times: float) -> None:
    own = {"1 H100": ("sampler.max_rows=64",), "8 H100": SHORT if "14b" in longer else ()}[machine]
    long, short = (fit(compose([*words.split(), *own]), BY_NAME[machine]).time for words in (longer, shorter))
    assert long.rollout > times * short.rollout
    assert (long.sync == 0) == ("sampler=torch" in longer)


def test_less_cache_takes_longer() -> None:
    roomy = fit(compose(["scale=paper"]), H100)
    starved = replace(roomy.memory, cache=roomy.memory.cache / 16)
    assert step_time.step_time(roomy.config, SEVEN, H100, starved).rollout > 1.2 * roomy.time.rollout


def test_no_step_beats_the_bandwidth_of_its_longest_response() -> None:
    """Weights are read once a token, whatever is drawn beside."""
    for name in ("8 A100", "8 H100", "8 H200"):
        seconds = 8192 * 2 * (SEVEN.parameters - SEVEN.head_parameters) / BY_NAME[name].card.bandwidth
        assert fit(compose(["scale=paper"]), BY_NAME[name]).time.rollout > seconds


def test_a_benchmark_is_read_and_drawn_to_its_end() -> None:
    card, shape = BY_NAME["1 H100"], KNOWN["Qwen/Qwen2.5-0.5B"]
    found = fit(compose(["scale=single_gpu", "data.benchmarks=[aime24]"]), card)
    config = found.config
    seconds = step_time.benchmark_time(config, shape, card, found.memory)
    decoding = cards.Decoding(H100_CARD, shape, 0.9, 256)
    assert seconds > decoding.seconds(300, 1, PROMPT)
    twice = replace(config, data=replace(config.data, benchmarks=["aime24", "aime24"]))
    assert step_time.benchmark_time(twice, shape, card, found.memory) == pytest.approx(2 * seconds, rel=0.05)


def test_whether_it_fits_is_said_without_a_simulation() -> None:
    """The simulation imports torch."""
    code = (
        "import sys; from tepo.config.compose import compose; from tepo.planning.fit import fit; "
        "from tepo.planning.gpus import machines; "
        "assert any(not fit(compose(['scale=paper']), one).problem for one in machines()); "
        "sys.exit('torch' in sys.modules)"
    )
    python("-c", code)
