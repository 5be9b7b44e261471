"""The memory model by hand, and against sizes that the models' authors publish."""

from dataclasses import replace

import pytest

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.config.run_config import RunConfig
from tepo.policy.model.shapes import KNOWN, Shape
from tepo.sampling.embedded.kv_cache import gpu_cache_bytes
from tepo.training.resources.memory import GIB, Gpus, fill, held_by_others, memory, sequence_bytes, with_all, with_share


@pytest.mark.parametrize(
    ("path", "billions"),
    [
        ("Qwen/Qwen2.5-7B", 7.61),
        ("Qwen/Qwen3-14B", 14.8),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", 8.03),
        ("mistralai/Mistral-7B-Instruct-v0.2", 7.24),
        ("Qwen/Qwen2.5-32B", 32.5),
    ],
)
def test_known_shapes_have_the_published_sizes(path: str, billions: float) -> None:
    assert KNOWN[path].parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_sharding_divides_what_it_should() -> None:
    shape = KNOWN["Qwen/Qwen2.5-7B"]
    one, eight = (memory(compose(["scale=paper", "engine.zero_stage=2"]), shape, Gpus(ranks)) for ranks in (1, 8))
    assert one.optimiser == pytest.approx(12 * shape.parameters)
    assert eight.optimiser == pytest.approx(one.optimiser / 8)
    assert eight.weights == one.weights == 2 * shape.parameters
    whole = memory(compose(["scale=paper", "engine.zero_stage=3"]), shape, Gpus(8))
    assert whole.weights < one.weights / 3
    assert whole.load < one.load / 5  # a shard and the largest tensor
    assert whole.load_host == 0 < one.load_host
    assert memory(compose(["scale=paper", "engine.zero_stage=3", "engine.offload=true"]), shape, Gpus(8)).optimiser == 0


@pytest.mark.parametrize(
    ("words", "shared", "whole", "on_their_way"),
    [
        (["engine.zero_stage=1"], 0, 4, 0.0),  # summed where they lie
        (["engine.zero_stage=2"], 4, 0, 2 * 5e8),
        (["engine.zero_stage=3"], 4, 0, 4 * 5e8),
        (["engine.zero_stage=1", "engine.offload=true"], 0, 4, 4 * 5e8),
        (["engine.zero_stage=2", "engine.offload=true"], 4, 0, 2 * 5e8),
        (["engine.zero_stage=3", "engine.offload=true"], 0, 0, 4 * 5e8),
    ],
)
def test_bytes_of_gradients_by_hand(words: list[str], shared: int, whole: int, on_their_way: float) -> None:
    """Bytes of a number that the ranks share out, that each has, and of DeepSpeed's bucket. The output matrix is larger
    than that and goes alone: a copy and its form in float32."""
    shape = KNOWN["Qwen/Qwen2.5-7B"]
    copies = 6 * shape.head_parameters if on_their_way else 0
    found = memory(compose(["scale=paper", *words]), shape, Gpus(8))
    assert found.gradients == pytest.approx((shared / 8 + whole) * shape.parameters + on_their_way + copies)


@pytest.mark.parametrize(
    ("words", "copies"),
    [
        (("sampler=vllm_server",), 8),
        (("sampler=vllm_server", "engine.zero_stage=3"), 8),
        (("sampler=vllm",), 0),
        (("sampler=vllm_server", "model.lora_rank=8", "engine=torch"), 0),
    ],
)
def test_main_memory_holds_the_weights_that_sampled(words: tuple[str, ...], copies: int) -> None:
    """Of each rank of a node, where a sampler draws with them beside the updates; of adapters nothing to speak of."""
    shape, words = KNOWN["Qwen/Qwen2.5-7B"], ("scale=paper", *words)
    fresh, stale = (memory(compose([*words, f"train.staleness={steps}"]), shape, Gpus(8, 8)) for steps in (0, 1))
    assert stale.host - fresh.host == copies * fresh.weights
    assert replace(stale, host=0.0) == replace(fresh, host=0.0)


@pytest.mark.parametrize(
    ("dtype", "word", "optimiser", "host"),
    [
        ("bfloat16", "engine.optimizer=adamw", 12, 0),
        ("float32", "engine.optimizer=adamw", 8, 0),
        ("bfloat16", "engine.optimizer=adamw_8bit", 6 + 1 / 32, 0),
        ("float32", "engine.optimizer=adamw_8bit", 2 + 1 / 32, 0),
        ("bfloat16", "engine.offload=true", 0, 12),
        ("float32", "engine.offload=true", 0, 12),
    ],
)
def test_bytes_of_a_weight_by_hand(dtype: str, word: str, optimiser: float, host: float) -> None:
    """Gradients are summed in float32 on the GPU whatever holds the rest."""
    shape = KNOWN["Qwen/Qwen2.5-7B"]
    found = memory(compose([f"model.dtype={dtype}", word]), shape)
    assert found.gradients == 4 * shape.parameters
    assert found.optimiser == pytest.approx(optimiser * shape.parameters)
    buffer = 4 * shape.head_parameters if host else 0
    assert found.host == pytest.approx(host * shape.parameters + buffer)


@pytest.mark.parametrize("model", ["qwen2.5-7b", "qwen3-14b"])
def test_the_samplers_share_is_what_the_trainer_leaves(model: str) -> None:
    """All phases fit, and nearly all of the GPU is used while responses are drawn; the cache holds sequences."""
    config, device = compose(["scale=paper", f"model={model}", "sampler.max_rows=256"]), 79 * GIB
    shape, gpus = KNOWN[config.model.path], Gpus(8, 8, device)
    found = memory(config, shape, gpus)
    assert 0.95 * device < found.sampling <= found.peak < device
    assert found.sampler == pytest.approx(2 * shape.parameters + 3.5 * GIB + found.cache)
    share = with_share(config, shape, gpus).sampler.memory_fraction
    assert found.sampler - 0.001 * device < share * device <= found.sampler
    closed = ("sampler.max_rows=256", "model.gradient_checkpointing=true")
    given = compose(["scale=paper", f"model={model}", "sampler.memory_fraction=0.3", *closed])
    assert with_share(given, shape, gpus) == given
    assert memory(given, shape, gpus).sampler == pytest.approx(0.3 * device)


def test_a_run_that_is_measured_has_the_gpu_for_itself() -> None:
    config, gpus = compose(["scale=paper", "model=qwen2.5-32b", "sampler.max_rows=256"]), Gpus(8, 8, 79 * GIB)
    share = with_all(config, KNOWN[config.model.path], gpus).sampler.memory_fraction
    assert share == pytest.approx(0.97 - 1.5 / 79, abs=0.001)


def test_what_others_hold_of_the_gpu_is_taken_off_the_share() -> None:
    """Training and measuring; a sampler without memory of its own asks for none."""
    config, others = compose(["scale=paper", "sampler.max_rows=9999"]), 2 * GIB
    shape, free, shared = KNOWN[config.model.path], Gpus(8, 8, 79 * GIB), Gpus(8, 8, 79 * GIB, others)
    for share_of in (with_share, with_all):
        alone, beside = (share_of(config, shape, gpus).sampler.memory_fraction for gpus in (free, shared))
        assert beside == pytest.approx(alone - 2 / 79, abs=0.002)
    plan = memory(config, shape, shared)
    assert plan.sampling + others < 79 * GIB
    for gpus, said, fix in (
        (Gpus(8, 8, 79 * GIB, 60 * GIB), "too little .* other processes hold 60", "CUDA_VISIBLE_DEVICES"),
        (Gpus(8, 8, 40 * GIB), r"12\.\d of 40 GiB are left for the sampler: too little", "tepo plan"),
    ):
        with pytest.raises(UserError, match=said) as caught:
            with_share(compose(["scale=paper"]), shape, gpus)
        assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("free", "reserved", "others"),
    [
        (79.6, 0, 0),  # nobody, and CUDA as it is after its start
        (79.0, 0.5, 0),  # what torch keeps is this process's own
        (78.0, 0, 1.5),  # a desktop, a probe that ends: no reason to refuse
        (40.0, 8, 31.5),
    ],
)
def test_what_this_process_holds_is_not_that_of_others(free: float, reserved: float, others: float) -> None:
    assert held_by_others(80 * GIB, free * GIB, reserved * GIB) == pytest.approx(others * GIB)


def test_what_sleeping_leaves_and_fragments_count_in_updates() -> None:
    shape = KNOWN["Qwen/Qwen2.5-7B"]
    found = memory(compose(["scale=paper", "sampler.max_rows=256"]), shape, Gpus(8, 8, 79 * GIB))
    moving = found.gradients + max(found.activations + found.logits, found.step)
    assert found.updating == pytest.approx(found.resident + 1.05 * moving + 1.5 * GIB)
    assert found.syncing == pytest.approx(found.resident + 2 * shape.parameters + 3.5 * GIB + found.gather)


def test_the_embedded_samplers_cache_is_counted_as_the_sampler_does() -> None:
    """What is left on the GPU beside the trainer and the sampler's copy of the weights: for a 7B far more than three
    rows."""
    shape, device = KNOWN["Qwen/Qwen2.5-7B"], 80 * GIB
    config = compose(["scale=paper", "sampler=torch"])
    found = memory(config, shape, Gpus(8, bytes=device))
    row = 2 * shape.cache_numbers * (2048 + 8192 + 64)
    free = device - found.resident - 2 * 2 * shape.parameters
    assert found.cache == pytest.approx(gpu_cache_bytes(free, device), abs=row)
    assert found.cache > 20 * row
    assert found.sampling < device
    few = memory(compose(["scale=paper", "sampler=torch", "sampler.max_rows=4"]), shape, Gpus(8, bytes=device))
    assert few.cache == 4 * row
    full = memory(config, shape, Gpus(8, bytes=found.resident))  # nothing left: one row all the same
    assert full.cache == row


def test_an_engine_over_several_gpus_has_a_part_of_the_weights_and_of_the_cache_on_each() -> None:
    """14B by hand: 8 key-value heads, of which each of two GPUs has four."""
    words, gpus = ("scale=paper", "model=qwen3-14b", "sampler.max_rows=256"), Gpus(8, 8, 79 * GIB)
    plain, cut = compose(words), compose([*words, "sampler.tensor_parallel=2"])
    shape = KNOWN[plain.model.path]
    alone, two = (memory(config, shape, gpus) for config in (plain, cut))
    assert two.sampler == alone.sampler  # what the trainer leaves
    assert two.cache == pytest.approx(alone.cache + shape.parameters)  # half of the weights, two bytes each
    assert sequence_bytes(cut, shape) == 2 * 2 * 40 * 4 * 128 * (2048 + 8192) == sequence_bytes(plain, shape) / 2
    assert alone.syncing - two.syncing == pytest.approx(shape.parameters)


OPEN = ("sampler.max_rows", "model.gradient_checkpointing")


def left_open(config: RunConfig) -> list[object]:
    return [config.sampler.max_rows, config.model.gradient_checkpointing]


def choose(config: RunConfig, shape: Shape, gpus: Gpus) -> tuple[RunConfig, dict[str, str]]:
    return fill(config, shape, gpus, reference=False)


@pytest.mark.parametrize("scale", ["single_gpu", "paper"])
@pytest.mark.parametrize("gpus", [Gpus(), Gpus(bytes=23.5 * GIB), Gpus(8, 8, 79 * GIB)])
def test_what_is_left_open_is_chosen_with_a_reason(scale: str, gpus: Gpus) -> None:
    config = compose([f"scale={scale}"])
    assert left_open(config) == [None] * 2
    found, why = choose(config, KNOWN[config.model.path], gpus)
    assert None not in left_open(found)
    assert {key: text.split(":")[0].capitalize() for key, text in why.items()} == dict(
        zip(OPEN, map(str, left_open(found)), strict=True)
    )
    assert choose(found, KNOWN[config.model.path], gpus) == (found, {})  # once, and what is given stays


def test_layers_are_computed_twice_only_where_the_memory_needs_it() -> None:
    """A tenth of the memory is left, because what is kept of activations is counted and not measured."""
    config = compose(["scale=single_gpu"])
    shape = KNOWN[config.model.path]
    kept = replace(config, model=replace(config.model, gradient_checkpointing=False))
    for gib in range(16, 60, 2):
        found = choose(config, shape, gpus := Gpus(bytes=gib * GIB))[0]
        assert found.model.gradient_checkpointing is (memory(kept, shape, gpus).updating > 0.9 * gib * GIB)
    assert choose(config, shape, Gpus(bytes=24 * GIB))[0].model.gradient_checkpointing is True
    assert choose(config, shape, Gpus(bytes=79 * GIB))[0].model.gradient_checkpointing is False


@pytest.mark.parametrize("model", ["qwen2.5-7b", "qwen3-14b", "qwen2.5-32b"])
def test_rows_are_those_that_the_cache_has_room_for(model: str) -> None:
    """An eighth of the longest sequence each, and a step more would not fit; at most what vLLM has graphs for."""
    config, gpus = compose(["scale=paper", f"model={model}"]), Gpus(8, 8, 79 * GIB)
    shape = KNOWN[config.model.path]
    rows = choose(config, shape, gpus)[0].sampler.max_rows
    fitting = [
        memory(compose(["scale=paper", f"model={model}", f"sampler.max_rows={n}"]), shape, gpus).cache
        for n in (rows, rows + 32)
    ]
    room = sequence_bytes(config, shape) / 8
    assert rows * room <= fitting[0]
    assert (rows + 32) * room > fitting[1]
    assert choose(config, shape, Gpus(8, 8, 500 * GIB))[0].sampler.max_rows == 512


def test_a_finished_run_is_measured_with_rows_that_fit_beside_no_trainer() -> None:
    config = compose(["scale=single_gpu", "model=qwen2.5-1.5b"])
    shape = KNOWN[config.model.path]
    assert choose(config, shape, Gpus(bytes=23.5 * GIB))[0].sampler.max_rows == 4  # whose training does not fit
    assert with_all(config, shape, Gpus(bytes=23.5 * GIB)).sampler.max_rows == 512
    assert with_all(config, shape, Gpus()).sampler.max_rows == 256
