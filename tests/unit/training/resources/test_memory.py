from dataclasses import replace

import pytest

from tepo.config.compose import compose
from tepo.config.run_config import RunConfig
from tepo.policy.model.shapes import KNOWN
from tepo.sampling.embedded.kv_cache import gpu_cache_bytes
from tepo.training.resources.gpu_cards import GIB
from tepo.training.resources.memory import Gpus, held_by_others, memory, sequence_bytes
from tepo.training.run import Run

PLAIN = ("sampler.tensor_parallel=1", "engine.micro_batch_tokens=16384", "engine.zero_stage=2")
CLOSED = (*PLAIN, "sampler.max_rows=256", "model.gradient_checkpointing=true")


def closed(*words: str) -> RunConfig:
    """A configuration that leaves nothing open; the words come last."""
    return compose([*CLOSED, *words])


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
    one, eight = (memory(Run(closed("scale=paper")), Gpus(ranks)) for ranks in (1, 8))
    assert one.optimiser == pytest.approx(12 * shape.parameters)
    assert eight.optimiser == pytest.approx(one.optimiser / 8)
    assert eight.weights == one.weights == 2 * shape.parameters
    whole = memory(Run(closed("scale=paper", "engine.zero_stage=3")), Gpus(8))
    assert whole.weights < one.weights / 3
    assert whole.load < one.load / 5  # a shard and the largest tensor
    assert whole.load_host == 0 < one.load_host
    assert memory(Run(closed("scale=paper", "engine.zero_stage=3", "engine.offload=true")), Gpus(8)).optimiser == 0


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
    found = memory(Run(closed("scale=paper", *words)), Gpus(8))
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
    fresh, stale = (memory(Run(closed("scale=paper", *words, f"train.staleness={n}")), Gpus(8, 8)) for n in (0, 1))
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
    found = memory(Run(compose([f"model.dtype={dtype}", word]), sizes=shape))
    assert found.gradients == 4 * shape.parameters
    assert found.optimiser == pytest.approx(optimiser * shape.parameters)
    buffer = 4 * shape.head_parameters if host else 0
    assert found.host == pytest.approx(host * shape.parameters + buffer)


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
    found = memory(Run(closed("scale=paper")), Gpus(8, 8, 79 * GIB))
    moving = found.gradients + max(found.activations + found.logits, found.step)
    assert found.updating == pytest.approx(found.resident + 1.05 * moving + 1.5 * GIB)
    assert found.syncing == pytest.approx(found.resident + 2 * shape.parameters + 3.5 * GIB + found.gather)


def test_the_embedded_samplers_cache_is_counted_as_the_sampler_does() -> None:
    """What is left on the GPU beside the trainer and the sampler's copy of the weights: for a 7B far more than three
    rows."""
    shape, device = KNOWN["Qwen/Qwen2.5-7B"], 80 * GIB
    config = closed("scale=paper", "sampler=torch", "sampler.max_rows=1024")
    found = memory(Run(config), Gpus(8, bytes=device))
    row = 2 * shape.cache_numbers * (2048 + 8192 + 64)
    free = device - found.resident - 2 * 2 * shape.parameters
    assert found.cache == pytest.approx(gpu_cache_bytes(free, device), abs=row)
    assert found.cache > 20 * row
    assert found.sampling < device
    few = memory(Run(closed("scale=paper", "sampler=torch", "sampler.max_rows=4")), Gpus(8, bytes=device))
    assert few.cache == 4 * row
    full = memory(Run(config), Gpus(8, bytes=found.resident))  # nothing left: one row all the same
    assert full.cache == row


def test_an_engine_over_several_gpus_has_a_part_of_the_weights_and_of_the_cache_on_each() -> None:
    """14B by hand: 8 key-value heads, of which each of two GPUs has four."""
    words, gpus = ("scale=paper", "model=qwen3-14b", "engine.zero_stage=3"), Gpus(8, 8, 79 * GIB)
    plain, cut = closed(*words), closed(*words, "sampler.tensor_parallel=2")
    shape = KNOWN[plain.model.path]
    alone, two = (memory(Run(config), gpus) for config in (plain, cut))
    assert two.sampler == alone.sampler  # what the trainer leaves
    together = 1.75 * GIB  # communicators and buffers
    assert two.cache == pytest.approx(alone.cache + shape.parameters - together)  # half of the weights, two bytes each
    assert sequence_bytes(Run(cut)) == 2 * 2 * 40 * 4 * 128 * (2048 + 8192) == sequence_bytes(Run(plain)) / 2
    assert alone.syncing - two.syncing == pytest.approx(shape.parameters - together)
    assert two.asleep == alone.asleep + together
