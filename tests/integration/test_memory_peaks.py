"""The memory model against the allocations of real updates."""

import json
from typing import Any

import pytest

from tepo.config.compose import compose
from tepo.policy.model.shapes import Shape
from tepo.training.resources.memory import memory
from tests.integration.commands import program

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
DEEP, WIDE, MANY_WORDS = (
    dict(zip((*SIZES, "vocab_size"), values, strict=True))
    for values in ((192, 768, 6, 6, 2, 512), (384, 768, 3, 6, 2, 8192), (128, 768, 3, 2, 2, 150_000))
)  # of the last the logits are above the budget: in parts
PROMPT, RESPONSE, GROUP = 32, 64, 4
EIGHT_BIT, OFFLOAD, RANK = ["engine.optimizer=adamw_8bit"], ["engine.offload=true"], ["model.lora_rank=16"]
CASES: dict[str, dict[str, Any]] = {
    "deep": {"sizes": DEEP, "checkpointing": False, "dtype": "float32", "words": []},
    "deep, checkpointing": {"sizes": DEEP, "checkpointing": True, "dtype": "float32", "words": []},
    "deep, offload": {"sizes": DEEP, "checkpointing": False, "dtype": "float32", "words": OFFLOAD},
    "wide": {"sizes": WIDE, "checkpointing": False, "dtype": "float32", "words": []},
    "wide, checkpointing": {"sizes": WIDE, "checkpointing": True, "dtype": "float32", "words": []},
    "many words": {"sizes": MANY_WORDS, "checkpointing": False, "dtype": "float32", "words": []},
    "deep, bfloat16": {"sizes": DEEP, "checkpointing": False, "dtype": "bfloat16", "words": []},
    "deep, bfloat16, checkpointing": {"sizes": DEEP, "checkpointing": True, "dtype": "bfloat16", "words": []},
    # on a CPU products in bfloat16 make float32 copies, which a GPU does without: a tenth more than is counted
    "many words, bfloat16": {"sizes": MANY_WORDS, "checkpointing": False, "dtype": "bfloat16", "words": []},
    "deep, bfloat16, offload": {"sizes": DEEP, "checkpointing": False, "dtype": "bfloat16", "words": OFFLOAD},
    "deep, bfloat16, checkpointing, offload": {
        "sizes": DEEP, "checkpointing": True, "dtype": "bfloat16", "words": OFFLOAD
    },
}  # fmt: skip
CASES_8BIT: dict[str, dict[str, Any]] = {
    "deep": {"sizes": DEEP, "checkpointing": False, "dtype": "float32", "words": EIGHT_BIT},
    "deep, bfloat16": {"sizes": DEEP, "checkpointing": False, "dtype": "bfloat16", "words": EIGHT_BIT},
    "deep, bfloat16, checkpointing": {"sizes": DEEP, "checkpointing": True, "dtype": "bfloat16", "words": EIGHT_BIT},
}
ADAPTERS: dict[str, dict[str, Any]] = {
    "deep, bfloat16": {"sizes": DEEP, "checkpointing": False, "dtype": "bfloat16", "words": RANK},
    "deep, bfloat16, checkpointing": {"sizes": DEEP, "checkpointing": True, "dtype": "bfloat16", "words": RANK},
    "many words, bfloat16": {"sizes": MANY_WORDS, "checkpointing": False, "dtype": "bfloat16", "words": RANK},
}


def measured(cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, int]]:
    arguments = [case | {"lengths": (PROMPT, RESPONSE, GROUP)} for case in cases.values()]
    done = program("tests.integration.peak_of_update", json.dumps(arguments)).end()
    return dict(zip(cases, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.fixture(scope="module")
def peaks() -> dict[str, dict[str, int]]:
    return measured(CASES)


@pytest.fixture(scope="module")
def peaks_8bit() -> dict[str, dict[str, int]]:
    return measured(CASES_8BIT)


def predicted(case: dict[str, Any]) -> tuple[float, float]:
    """The peak of an update, and what the optimiser keeps, which on a CPU is in the same memory wherever it lies."""
    *known, vocabulary = case["sizes"].values()
    shape = Shape(*known, known[0] // known[3], vocabulary, True)
    lengths = [
        f"train.max_prompt_tokens={PROMPT}",
        f"train.max_new_tokens={RESPONSE}",
        f"engine.micro_batch_tokens={PROMPT + GROUP * (RESPONSE - 1)}",
    ]
    model = [f"model.gradient_checkpointing={case['checkpointing']}", f"model.dtype={case['dtype']}"]
    parts = memory(compose([*lengths, *model, *case["words"]]), shape)
    return parts.gradients + parts.activations + parts.logits, parts.optimiser + parts.host


def check(case: dict[str, Any], peak: dict[str, int]) -> None:
    one, kept = predicted(case)
    assert one == pytest.approx(peak["one"], rel=0.1)
    assert one + kept == pytest.approx(peak["all"], rel=0.1)
    assert kept == pytest.approx(peak["all"] - peak["one"], rel=0.1)


@pytest.mark.disaster
@pytest.mark.parametrize("name", CASES)
def test_measured_peaks(peaks: dict[str, dict[str, int]], name: str) -> None:
    check(CASES[name], peaks[name])


@pytest.mark.disaster
@pytest.mark.bitsandbytes
@pytest.mark.parametrize("name", CASES_8BIT)
def test_measured_peaks_with_8bit_moments(peaks_8bit: dict[str, dict[str, int]], name: str) -> None:
    check(CASES_8BIT[name], peaks_8bit[name])


@pytest.mark.disaster
@pytest.mark.peft
def test_measured_peaks_with_adapters() -> None:
    peaks = {name: peak["one"] for name, peak in measured(ADAPTERS).items()}
    assert {name: predicted(case)[0] for name, case in ADAPTERS.items()} == pytest.approx(peaks, rel=0.15)
