from dataclasses import replace

import pytest

from tepo.config.compose import compose
from tepo.policy.model.shapes import KNOWN, shape_of
from tepo.sampling.embedded.kv_cache import gpu_cache_bytes
from tepo.training.resources.gpu_cards import GIB
from tepo.training.resources.memory import Gpus, Memory, memory, sequence_bytes
from tepo.training.run import Run

CLOSED = ("sampler.tensor_parallel=1", "engine.micro_batch_tokens=16384", "engine.zero_stage=2")
CLOSED += ("sampler.max_rows=256", "model.gradient_checkpointing=true")
SHAPE = KNOWN["Qwen/Qwen2.5-7B"]
EIGHT = Gpus(8, 8, 79 * GIB)


def closed(*words: str) -> Run:
    """The papers' run with nothing left open; the words come last."""
    return Run(compose(["scale=paper", *CLOSED, *words]))


def needed(*words: str, gpus: Gpus = EIGHT) -> Memory:
    return memory(closed(*words), gpus)


@pytest.mark.parametrize(
    ("path", "billions"),
    [("Qwen/Qwen2.5-7B", 7.61), ("Qwen/Qwen3-14B", 14.8), ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", 8.03)],
)
def test_known_shapes_have_the_published_sizes(path: str, billions: float) -> None:
    assert KNOWN[path].parameters / 1e9 == pytest.approx(billions, rel=0.01)


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
        (["engine.zero_stage=3"], 4, 0, 4 * 5e8),
        (["engine.zero_stage=1", "engine.offload=true"], 0, 4, 4 * 5e8),
        (["engine.zero_stage=2", "engine.offload=true"], 4, 0, 2 * 5e8),
        (["engine.zero_stage=3", "engine.offload=true"], 0, 0, 4 * 5e8),
    ],
)
def test_bytes_of_gradients_by_hand(words: list[str], shared: int, whole: int, on_their_way: float) -> None:
    """Bytes of a number that the ranks share out, that each has, and of DeepSpeed's bucket. The output matrix is larger
    than that and goes alone: a copy and its form in float32."""
    copies = 6 * SHAPE.head_parameters if on_their_way else 0
    found = needed(*words).gradients
    assert found == pytest.approx((shared / 8 + whole) * SHAPE.parameters + on_their_way + copies)


@pytest.mark.parametrize(
    ("words", "copies"),
    [
        (["sampler=vllm_server"], 8),
        (["sampler=vllm"], 0),
        (["sampler=vllm_server", "model.lora_rank=8", "engine=torch"], 0),
    ],
)
def test_main_memory_holds_the_weights_that_sampled(words: list[str], copies: int) -> None:
    """Of each rank of a node, where a sampler draws with them beside the updates; of adapters nothing to speak of."""
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


def test_the_plan_counts_a_teacher() -> None:
    words = ["objective=distillation", "model.teacher=package:laptop_sparse"]
    taught, alone = memory(Run(compose(words))), memory(Run(compose()))
    assert taught.reference - alone.reference == 4 * shape_of("package:laptop_sparse").parameters


def test_what_sleeping_leaves_and_fragments_count_in_updates() -> None:
    found = needed()
    moving = found.gradients + max(found.activations + found.logits, found.step)
    assert found.updating == pytest.approx(found.resident + 1.05 * moving + 1.5 * GIB)
    assert found.syncing == pytest.approx(found.resident + 2 * SHAPE.parameters + 3.5 * GIB + found.gather)


def test_the_embedded_samplers_cache_is_counted_as_the_sampler_does() -> None:
    """What is left on the GPU beside the trainer and the sampler's copy of the weights, and a row where nothing is."""
    words, device = ("sampler=torch", "sampler.max_rows=1024"), 80 * GIB
    found = needed(*words, gpus=Gpus(8, bytes=device))
    row = 2 * SHAPE.cache_numbers * (2048 + 8192 + 64)
    free = device - found.resident - 2 * 2 * SHAPE.parameters
    assert found.cache == pytest.approx(gpu_cache_bytes(free, device), abs=row)
    assert found.sampling < device
    assert needed(*words, "sampler.max_rows=4", gpus=Gpus(8, bytes=device)).cache == 4 * row
    assert needed(*words, gpus=Gpus(8, bytes=found.resident)).cache == row


def test_an_engine_over_several_gpus_has_a_part_of_the_weights_and_of_the_cache_on_each() -> None:
    """14B by hand: 8 key-value heads, of which each of two GPUs has four."""
    plain, cut = (closed("model=qwen3-14b", "engine.zero_stage=3", f"sampler.tensor_parallel={n}") for n in (1, 2))
    alone, two = (memory(run, EIGHT) for run in (plain, cut))
    assert two.sampler == alone.sampler  # what the trainer leaves
    together = 1.75 * GIB  # communicators and buffers
    parameters = plain.shape.parameters
    assert two.cache == pytest.approx(alone.cache + parameters - together)  # half of the weights, two bytes each
    assert sequence_bytes(cut) == 2 * 2 * 40 * 4 * 128 * (2048 + 8192) == sequence_bytes(plain) / 2
    assert alone.syncing - two.syncing == pytest.approx(parameters - together)
    assert two.asleep == alone.asleep + together
