import itertools
from dataclasses import replace

import pytest

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.config.run_config import RunConfig
from tepo.planning.fit import fit
from tepo.planning.gpus import machines
from tepo.policy.model.shapes import KNOWN, shape_of
from tepo.training import setup
from tepo.training.resources.gpu_cards import GIB, H100
from tepo.training.resources.layout import fill, is_open, with_all, with_share
from tepo.training.resources.memory import Gpus, Memory, memory, sequence_bytes
from tepo.training.run import Run

CHOSEN = ("sampler.tensor_parallel", "engine.micro_batch_tokens", "engine.zero_stage")
OPEN = (*CHOSEN, "sampler.max_rows", "model.gradient_checkpointing", "engine.offload")
CLOSED = [f"{key}={value}" for key, value in zip(OPEN, (1, 16384, 2, 256, "true", "false"), strict=True)]
PLAIN = CLOSED[:3]
BY_NAME = {machine.name: machine for machine in machines()}
SHAPE, NODE = KNOWN["Qwen/Qwen2.5-7B"], Gpus(8, 8, 79 * GIB)
EIGHT, ONE, CPU = Gpus(8, 8, H100.bytes, card=H100), Gpus(bytes=23.5 * GIB), Gpus()


def closed(*words: str) -> Run:
    """The papers' run with nothing left open; the words come last."""
    return Run(compose(["scale=paper", *CLOSED, *words]))


def needed(*words: str, gpus: Gpus = NODE) -> Memory:
    return memory(closed(*words), gpus)


def test_sharding_divides_what_it_should() -> None:
    one, eight = needed(gpus=Gpus(1)), needed(gpus=Gpus(8))
    assert one.optimiser == pytest.approx(12 * SHAPE.parameters)
    assert eight.optimiser == pytest.approx(one.optimiser / 8)
    assert eight.weights == one.weights == 2 * SHAPE.parameters
    whole = needed("engine.zero_stage=3")
    assert whole.weights < one.weights / 3
    assert whole.load < one.load / 5  # a shard and the largest tensor
    assert whole.load_host == 0 < one.load_host
    assert needed("engine.zero_stage=3", "engine.offload=true").optimiser == 0


@pytest.mark.parametrize(
    ("words", "shared", "whole", "on_their_way"),
    [
        (["engine.zero_stage=1"], 0, 4, 0.0),  # summed where they lie
        (["engine.zero_stage=2"], 4, 0, 2 * 5e8),
        (["engine.zero_stage=1", "engine.offload=true"], 0, 4, 4 * 5e8),
        (["engine.zero_stage=3", "engine.offload=true"], 0, 0, 4 * 5e8),
    ],
)
def test_bytes_of_gradients_by_hand(words: list[str], shared: int, whole: int, on_their_way: float) -> None:
    """Bytes of a number that the ranks share out, that each has, and of DeepSpeed's bucket. The output matrix is larger
    than that and goes alone: a copy and its form in float32."""
    copies = 6 * SHAPE.head_parameters if on_their_way else 0
    found = needed(*words).gradients
    assert found == pytest.approx((shared / 8 + whole) * SHAPE.parameters + on_their_way + copies)


@pytest.mark.parametrize(("words", "copies"), [(["sampler=vllm_server"], 8), (["sampler=vllm"], 0)])
def test_main_memory_holds_the_weights_that_sampled(words: list[str], copies: int) -> None:
    """Of each rank of a node, where a sampler draws with them beside the updates."""
    fresh, stale = (needed(*words, f"train.staleness={n}", gpus=Gpus(8, 8)) for n in (0, 1))
    assert stale.host - fresh.host == copies * fresh.weights
    assert replace(stale, host=0.0) == replace(fresh, host=0.0)


@pytest.mark.parametrize(
    ("dtype", "word", "optimiser", "host"),
    [
        ("bfloat16", "engine.optimizer=adamw", 12, 0),
        ("float32", "engine.optimizer=adamw", 8, 0),
        ("bfloat16", "engine.optimizer=adamw_8bit", 6 + 1 / 32, 0),
        ("float32", "engine.offload=true", 0, 12),
    ],
)
def test_bytes_of_a_weight_by_hand(dtype: str, word: str, optimiser: float, host: float) -> None:
    """Gradients are summed in float32 on the GPU whatever holds the rest."""
    found = memory(Run(compose([f"model.dtype={dtype}", word]), sizes=SHAPE))
    assert found.gradients == 4 * SHAPE.parameters
    assert found.optimiser == pytest.approx(optimiser * SHAPE.parameters)
    buffer = 4 * SHAPE.head_parameters if host else 0
    assert found.host == pytest.approx(host * SHAPE.parameters + buffer)


@pytest.mark.parametrize(
    ("words", "model"),
    [
        (["objective=distillation", "model.teacher=package:laptop_sparse"], "package:laptop_sparse"),
        (["objective=grpo"], "package:laptop"),
    ],
)
def test_the_plan_counts_a_teacher_and_the_initial_policy(words: list[str], model: str) -> None:
    beside, alone = memory(Run(compose(words))), memory(Run(compose(["objective=tepo"])))
    assert beside.reference - alone.reference == 4 * shape_of(model).parameters


def test_an_engine_over_several_gpus_has_a_part_of_the_weights_and_of_the_cache_on_each() -> None:
    """14B by hand: 8 key-value heads, of which each of two GPUs has four."""
    plain, cut = (closed("model=qwen3-14b", "engine.zero_stage=3", f"sampler.tensor_parallel={n}") for n in (1, 2))
    alone, two = (memory(run, NODE) for run in (plain, cut))
    assert two.sampler == alone.sampler  # what the trainer leaves
    together = 1.75 * GIB  # communicators and buffers
    parameters = plain.shape.parameters
    assert two.cache == pytest.approx(alone.cache + parameters - together)  # half of the weights, two bytes each
    assert sequence_bytes(cut) == 2 * 2 * 40 * 4 * 128 * (2048 + 8192) == sequence_bytes(plain) / 2
    assert alone.syncing - two.syncing == pytest.approx(parameters - together)
    assert two.asleep == alone.asleep + together


def choose(config: RunConfig, gpus: Gpus) -> tuple[RunConfig, dict[str, str]]:
    chosen, why = fill(Run(config), gpus)
    return chosen.config, why


@pytest.mark.parametrize(
    ("scale", "gpus", "said"),
    [("paper", CPU, OPEN[3:]), ("single_gpu", ONE, (OPEN[1], *OPEN[3:])), ("paper", EIGHT, OPEN)],
)
def test_what_is_left_open_is_chosen_with_a_reason(scale: str, gpus: Gpus, said: tuple[str, ...]) -> None:
    """Where there is a choice: one GPU has nothing to cut but what is offloaded, and a CPU takes the usual values."""
    config = compose([f"scale={scale}", "engine=deepspeed"])
    found, why = choose(config, gpus)
    assert is_open(Run(config))
    assert not is_open(Run(found))
    assert why.keys() == {*said, *([CHOSEN[2]] if found.engine.offload else [])}
    for key, text in why.items():
        assert text.startswith(f"{str(Run(found).get(key)).lower()}: ")
    assert choose(found, gpus) == (found, {})  # once, and what is given stays


def test_no_layout_that_fits_is_faster_than_the_one_that_is_chosen() -> None:
    """By the plan's own figures, each layout given by hand; but for the fiftieth that a setting has to save."""
    config, machine = compose(["scale=paper", "model=qwen2.5-32b"]), BY_NAME["8 H100"]
    best = fit(Run(config), machine)
    assert not best.problem
    for size, tokens, stage in itertools.product((1, 2, 4, 8), (10240, 16384, 32768), (1, 2, 3)):
        given = Run(config).having(CHOSEN[0], size).having(CHOSEN[1], tokens).having(CHOSEN[2], stage)
        other = fit(Run(given.config), machine)
        assert other.problem or best.time.total <= 1.06 * other.time.total, (size, tokens, stage)


def test_the_samplers_share_is_what_the_trainer_leaves() -> None:
    """All phases fit, and nearly all of the GPU is used while responses are drawn; the cache holds sequences."""
    words, gpus = ["scale=paper", *CLOSED, "engine.zero_stage=3"], NODE
    run, given = Run(compose(words)), Run(compose([*words, "sampler.memory_fraction=0.3"]))
    found = memory(run, gpus)
    assert 0.95 * gpus.bytes < found.sampling <= found.peak < gpus.bytes
    assert found.sampler == pytest.approx(2 * run.shape.parameters + 3.5 * GIB + found.cache)
    share = with_share(run, gpus).config.sampler.memory_fraction
    assert found.sampler - 0.001 * gpus.bytes < share * gpus.bytes <= found.sampler
    assert with_share(given, gpus).config == given.config
    assert memory(given, gpus).sampler == pytest.approx(0.3 * gpus.bytes)


def test_what_others_hold_of_the_gpu_is_taken_off_the_share() -> None:
    """Training and measuring; a sampler without memory of its own asks for none."""
    config, others = compose(["scale=paper", *CLOSED, "sampler.max_rows=9999"]), 2 * GIB
    free, shared = Gpus(8, 8, 79 * GIB), Gpus(8, 8, 79 * GIB, others)
    for share_of in (with_share, with_all):
        alone, beside = (share_of(Run(config), gpus).config.sampler.memory_fraction for gpus in (free, shared))
        assert beside == pytest.approx(alone - 2 / 79, abs=0.002)
    plan = memory(Run(config), shared)
    assert plan.sampling + others < 79 * GIB
    for gpus in (Gpus(8, 8, 79 * GIB, 60 * GIB), Gpus(8, 8, 40 * GIB)):
        with pytest.raises(UserError, match="left for the sampler: too little"):
            with_share(Run(compose(["scale=paper", *CLOSED])), gpus)


def test_rows_are_those_that_the_cache_has_room_for() -> None:
    """An eighth of the longest sequence each, and a step more would not fit; at most what vLLM has graphs for."""
    words = ["scale=paper", "model=qwen2.5-32b", *PLAIN, "engine.zero_stage=3", "engine.offload=true"]
    config, gpus = compose(words), Gpus(8, 8, 79 * GIB)
    rows = choose(config, gpus)[0].sampler.max_rows
    again = Run(config).having("model.gradient_checkpointing", True)
    fitting, more = (memory(again.having("sampler.max_rows", n), gpus).cache for n in (rows, rows + 32))
    room = sequence_bytes(Run(config)) / 8
    assert rows * room <= fitting
    assert (rows + 32) * room > more
    assert choose(config, Gpus(8, 8, 500 * GIB))[0].sampler.max_rows == 512


def test_what_is_planned_is_what_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank goes by the cards, whatever else runs on its own."""
    found = Gpus(8, 8, H100.bytes, taken=20e9, card=H100, host=BY_NAME["8 H100"].host)
    monkeypatch.setattr(setup, "gpus_here", lambda device: found)
    config = compose(["scale=paper", "model=qwen2.5-32b"])
    planned = fit(Run(config), BY_NAME["8 H100"])
    chosen, why = setup.laid_out(Run(config))
    assert (chosen.config, why) == (planned.run.config, planned.why)
    assert not is_open(chosen)
    assert chosen.folder == Run(config).folder  # what is chosen is no part of the id
