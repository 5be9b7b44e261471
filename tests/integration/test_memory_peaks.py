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
KINDS = {
    "plain": [],
    "offload": ["engine.offload=true"],
    "8bit": ["engine.optimizer=adamw_8bit"],
    "adapters": ["model.lora_rank=16"],
}
MARKS = {"8bit": [pytest.mark.bitsandbytes], "adapters": [pytest.mark.peft]}
CASES: dict[str, list[tuple[dict[str, int], str, bool]]] = {  # sizes, dtype, checkpointing
    "plain": [
        *((sizes, "float32", checkpointing) for sizes in (DEEP, WIDE) for checkpointing in (False, True)),
        (MANY_WORDS, "float32", False),
        *((DEEP, "bfloat16", checkpointing) for checkpointing in (False, True)),
        # on a CPU products in bfloat16 make float32 copies, which a GPU does without: a tenth more than is counted
        (MANY_WORDS, "bfloat16", False),
    ],
    "offload": [(DEEP, "float32", False), (DEEP, "bfloat16", False), (DEEP, "bfloat16", True)],
    "8bit": [(DEEP, "float32", False), (DEEP, "bfloat16", False), (DEEP, "bfloat16", True)],
    "adapters": [(DEEP, "bfloat16", False), (DEEP, "bfloat16", True), (MANY_WORDS, "bfloat16", False)],
}


@pytest.mark.disaster
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=MARKS.get(kind, [])) for kind in KINDS])
def test_measured_peaks(kind: str) -> None:
    """Of an update, of what the optimiser keeps, and of both; of adapters, whose optimiser is small, of the update."""
    names = ("sizes", "dtype", "checkpointing")
    cases = [dict(zip(names, case, strict=True)) | {"words": KINDS[kind]} for case in CASES[kind]]
    given = json.dumps([case | {"lengths": (PROMPT, RESPONSE, GROUP)} for case in cases])
    done = program("tests.integration.peak_of_update", given).end()
    peaks = json.loads(done.stdout.splitlines()[-1])
    if kind == "adapters":
        assert [predicted(case)[0] for case in cases] == pytest.approx([peak["one"] for peak in peaks], rel=0.15)
        return
    for case, peak in zip(cases, peaks, strict=True):
        one, kept = predicted(case)
        assert (one, one + kept, kept) == pytest.approx((peak["one"], peak["all"], peak["all"] - peak["one"]), rel=0.1)


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
