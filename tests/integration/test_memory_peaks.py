import json
from typing import Any

import pytest

from tepo.config.compose import compose
from tepo.policy.model.shapes import Shape
from tepo.training.resources.memory import Gpus, memory
from tepo.training.run import Run
from tests.support.commands import program, ranks

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
    "zero 1": ["engine=deepspeed", "engine.zero_stage=1"],
    "zero 3": ["engine=deepspeed", "engine.zero_stage=3"],
}
MARKS = {"8bit": [pytest.mark.bitsandbytes], "adapters": [pytest.mark.peft]}
MARKS |= {f"zero {stage}": [pytest.mark.deepspeed] for stage in (1, 3)}
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
    # where activations are more than AdamW's temporaries on a CPU
    "zero 1": [(WIDE, "bfloat16", False), (WIDE, "bfloat16", True)],
    "zero 3": [(WIDE, "bfloat16", False)],  # most of it DeepSpeed's bucket; in what is kept it must not be
}


@pytest.mark.disaster
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=MARKS.get(kind, [])) for kind in KINDS])
def test_measured_peaks(kind: str) -> None:
    """Of an update, of what the optimiser keeps, and of both; of adapters, whose optimiser is small, of the update."""
    names = ("sizes", "dtype", "checkpointing")
    cases = [dict(zip(names, case, strict=True)) | {"words": KINDS[kind]} for case in CASES[kind]]
    given = json.dumps([case | {"lengths": (PROMPT, RESPONSE, GROUP)} for case in cases])
    start = ranks if kind.startswith("zero") else lambda *words: [program(*words)]  # two of them
    done = [process.end() for process in start("tests.integration.peak_of_update", given)]
    peaks = json.loads(done[0].stdout.splitlines()[-1])
    if kind == "adapters":
        assert [predicted(case)[0] for case in cases] == pytest.approx([peak["one"] for peak in peaks], rel=0.15)
        return
    for case, peak in zip(cases, peaks, strict=True):
        one, kept = predicted(case)
        assert (one, one + kept, kept) == pytest.approx((peak["one"], peak["all"], peak["kept"]), rel=0.1)


def predicted(case: dict[str, Any]) -> tuple[float, float]:
    """The peak of an update, and what the optimiser keeps, which on a CPU is in the same memory wherever it lies.
    DeepSpeed also puts the weights elsewhere."""
    *known, vocabulary = case["sizes"].values()
    shape = Shape(*known, known[0] // known[3], vocabulary, True)
    lengths = [
        f"train.max_prompt_tokens={PROMPT}",
        f"train.max_new_tokens={RESPONSE}",
        f"engine.micro_batch_tokens={PROMPT + GROUP * (RESPONSE - 1)}",
    ]
    model = [f"model.gradient_checkpointing={case['checkpointing']}", f"model.dtype={case['dtype']}"]
    config = compose([*lengths, *model, *case["words"]])
    sharded = config.engine.kind == "deepspeed"
    parts = memory(Run(config, sizes=shape), Gpus(ranks=2) if sharded else Gpus())
    kept = parts.optimiser + (parts.weights if sharded else parts.host)
    return parts.gradients + parts.activations + parts.logits, kept
