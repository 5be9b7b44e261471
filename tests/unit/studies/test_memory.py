"""The memory model against the allocations of real updates, and against sizes that the models' authors publish."""

import json
from typing import Any

import pytest

from tepo.config.compose import compose
from tepo.policy.shapes import KNOWN, Shape
from tepo.sampling.cache_size import gpu_cache_bytes
from tepo.studies.memory import GIB, Gpus, memory
from tests.integration.commands import program

DEEP = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
WIDE = {
    "hidden_size": 384,
    "intermediate_size": 768,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 8192,
}
MANY_WORDS = WIDE | {
    "hidden_size": 128,
    "num_attention_heads": 2,
    "vocab_size": 150_000,
}  # logits above the budget: in parts
PROMPT, RESPONSE, GROUP = 32, 64, 4
CASES: dict[str, dict[str, Any]] = {
    "deep": {"sizes": DEEP, "checkpointing": False, "dtype": "float32"},
    "deep, checkpointing": {"sizes": DEEP, "checkpointing": True, "dtype": "float32"},
    "wide": {"sizes": WIDE, "checkpointing": False, "dtype": "float32"},
    "wide, checkpointing": {"sizes": WIDE, "checkpointing": True, "dtype": "float32"},
    "many words": {"sizes": MANY_WORDS, "checkpointing": False, "dtype": "float32"},
    "deep, bfloat16, checkpointing": {"sizes": DEEP, "checkpointing": True, "dtype": "bfloat16"},
    "deep, bfloat16": {"sizes": DEEP, "checkpointing": False, "dtype": "bfloat16"},
}
LORA: dict[str, dict[str, Any]] = {
    "deep, bfloat16": {"sizes": DEEP, "checkpointing": False, "dtype": "bfloat16", "rank": 16},
    "deep, bfloat16, checkpointing": {"sizes": DEEP, "checkpointing": True, "dtype": "bfloat16", "rank": 16},
    "many words, bfloat16": {"sizes": MANY_WORDS, "checkpointing": False, "dtype": "bfloat16", "rank": 16},
}


@pytest.fixture(scope="module")
def peaks() -> dict[str, int]:
    """Measured, by case."""
    return _measured(CASES)


def _measured(chosen: dict[str, dict[str, Any]]) -> dict[str, int]:
    cases = [case | {"prompt": PROMPT, "response": RESPONSE, "group": GROUP} for case in chosen.values()]
    done = program("tests.unit.studies.peak_of_update", json.dumps(cases)).end()
    assert done.returncode == 0, done.stderr
    return dict(zip(chosen, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_measured_peaks(peaks: dict[str, int], name: str) -> None:
    assert _predicted(CASES[name]) == pytest.approx(peaks[name], rel=0.15)


@pytest.mark.slow
@pytest.mark.peft
def test_measured_peaks_with_adapters() -> None:
    peaks = _measured(LORA)
    assert {name: _predicted(case) for name, case in LORA.items()} == pytest.approx(peaks, rel=0.15)


def _predicted(case: dict[str, Any]) -> float:
    """What an update takes above weights and optimiser, by the planner."""
    sizes = case["sizes"]
    head_dim = sizes["hidden_size"] // sizes["num_attention_heads"]
    shape = Shape(
        sizes["hidden_size"],
        sizes["intermediate_size"],
        sizes["num_hidden_layers"],
        sizes["num_attention_heads"],
        2,
        head_dim,
        sizes["vocab_size"],
        True,
    )
    lengths = [
        f"train.max_prompt_tokens={PROMPT}",
        f"train.max_new_tokens={RESPONSE}",
        f"engine.micro_batch_tokens={PROMPT + GROUP * (RESPONSE - 1)}",
    ]
    config = compose(
        [
            *lengths,
            f"model.gradient_checkpointing={case['checkpointing']}",
            f"model.dtype={case['dtype']}",
            f"model.lora_rank={case.get('rank', 0)}",
        ]
    )
    predicted = memory(config, shape)
    return predicted.gradients + predicted.activations + predicted.logits


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
    assert memory(compose(["scale=paper", "engine.zero_stage=3", "engine.offload=true"]), shape, Gpus(8)).optimiser == 0


def test_adapters_take_little_and_need_no_second_copy_of_the_first_policy() -> None:
    shape = KNOWN["Qwen/Qwen2.5-7B"]
    words = ["scale=paper", "engine=torch"]
    full, lora = (
        memory(compose([*words, f"model.lora_rank={rank}"]), shape, Gpus(bytes=80 * GIB), reference=True)
        for rank in (0, 32)
    )
    adapters = 32 * 28 * (2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18_944))  # q and o, k and v, the three
    assert shape.adapter_parameters(32) == adapters
    assert (lora.optimiser, lora.gradients, lora.reference) == (12 * adapters, 4 * adapters, 0)
    assert lora.weights == full.weights + 2 * adapters
    assert full.reference == full.weights
    merged = 2 * shape.layers * shape.layer_parameters  # what vLLM is given at a sync
    assert lora.sampler == pytest.approx(full.sampler + merged)


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


def test_on_a_cpu_the_embedded_samplers_cache_grows_and_so_counts_twice() -> None:
    shape = KNOWN["Qwen/Qwen2.5-7B"]
    found = memory(compose(["scale=paper", "sampler=torch"]), shape)
    assert found.cache == 3 * 2 * 2 * shape.cache_numbers * (2048 + 8192 + 64)
