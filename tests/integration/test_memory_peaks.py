"""The most bytes that torch holds during updates of two micro-batches, alone or in two ranks, as planned."""

import gc
import json
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import Qwen2Config, Qwen2ForCausalLM

from tepo.config.compose import compose
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.model.load_policy import Policy
from tepo.policy.model.lora import add_adapters
from tepo.policy.model.packed_attention import prepare
from tepo.policy.model.shapes import Shape
from tepo.policy.packing.packing import pack
from tepo.training.distributed import process_group
from tepo.training.engine.backends import engine_backend
from tepo.training.loop import train
from tepo.training.resources.memory import Gpus, memory
from tepo.training.run import Run
from tests.support.commands import Started, ranks
from tests.support.runs import SMALL

SECOND = "second update"
PROMPT, RESPONSE, GROUP = 32, 64, 4


def allocated(run: Callable[[], None]) -> tuple[list[int], list[int]]:
    """Totals of torch's allocations, which count from the start of `run`: before its part SECOND, and from there on."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as made:
        run()
    events = list(flat(made.profiler.kineto_results.experimental_event_tree()))
    (begin,) = (event.start_time_ns for event in events if event.name == SECOND)
    counted = [event for event in events if hasattr(event.extra_fields, "total_allocated")]
    totals = sorted((event.start_time_ns, event.extra_fields.total_allocated) for event in counted)
    return [total for time, total in totals if time < begin], [total for time, total in totals if time >= begin]


def flat(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        yield from flat(event.children)


class Updates:
    """Of a model with random weights. words: overrides of engine and adapters."""

    def __init__(self, sizes: dict[str, Any], words: list[str], checkpointing: bool, dtype: str):
        torch.manual_seed(0)
        self.model = Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=True)).to(getattr(torch, dtype))
        if checkpointing:
            self.model.train()
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        prepare(self.model)
        self.config = compose([f"model.dtype={dtype}", *words])
        if self.config.model.lora_rank:
            add_adapters(self.model, self.config.model.lora_rank, self.config.model.lora_alpha, 0)
        self.packed = pack([([3] * PROMPT, [[5] * RESPONSE] * GROUP)])

    def update(self) -> None:
        for _ in range(2):
            self.engine.backward(-token_statistics(self.model, self.packed).logprobs.mean())
        self.engine.step(1e-4)
        self.engine.weights()  # as after each rollout

    def two(self) -> None:
        """The first makes Adam's moments, which the second has from its start. All is freed at the end: what is freed
        after a profile is counted as held in the next."""
        before = storages()  # not freed, so that nothing new takes their addresses
        self.engine = engine_backend(self.config.engine.kind).open(self.config, Policy(self.model, None))
        self.update()
        gc.collect()
        self.held = sum(kept.nbytes() for place, kept in storages().items() if place not in before)
        with record_function(SECOND):
            self.update()
        self.engine.close()
        del self.engine
        gc.collect()


def storages() -> dict[int, torch.UntypedStorage]:
    """Of the live tensors, by address."""
    tensors = [value for value in gc.get_objects() if isinstance(value, torch.Tensor)]
    tensors += [value.grad for value in tensors if value.is_leaf and value.grad is not None]
    return {value.untyped_storage().data_ptr(): value.untyped_storage() for value in tensors}


def print_peaks(cases: list[dict[str, Any]]) -> None:
    """kept: by the optimiser; one: of the second update, above that; all: of engine and updates, above the weights.

    What is kept is summed over tensors, not taken from the profile, which misses what gloo's threads free."""
    torch.set_num_threads(1)
    peaks = []
    for case in cases:
        updates = Updates(**case)
        first, second = allocated(updates.two)
        peaks.append({"kept": updates.held, "one": max(second) - first[-1], "all": max(first + second)})
    if process_group.rank() == 0:
        sys.stdout.write(json.dumps(peaks))


SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
DEEP, WIDE, MANY_WORDS = (
    dict(zip((*SIZES, "vocab_size"), values, strict=True))
    for values in ((192, 768, 6, 6, 2, 512), (384, 768, 3, 6, 2, 8192), (128, 768, 3, 2, 2, 150_000))
)  # of the last the logits are above the budget: in parts
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
    started = ranks(print_peaks, cases) if kind.startswith("zero") else [Started(print_peaks, cases)]
    done = [process.end() for process in started]
    peaks = json.loads(done[0].stdout.splitlines()[-1])
    if kind == "adapters":
        assert [predicted(case)[0] for case in cases] == pytest.approx([peak["one"] for peak in peaks], rel=0.15)
        return
    for case, peak in zip(cases, peaks, strict=True):
        one, kept = predicted(case)
        assert (one, one + kept, kept) == pytest.approx((peak["one"], peak["all"], peak["kept"]), rel=0.1)


def predicted(case: dict[str, Any]) -> tuple[float, float]:
    """Of an update, and of what the optimiser keeps, to which DeepSpeed adds the weights."""
    *known, vocabulary = case["sizes"].values()
    shape = Shape(*known, known[0] // known[3], vocabulary, True)
    lengths = [f"train.max_prompt_tokens={PROMPT}", f"train.max_new_tokens={RESPONSE}"]
    lengths += [f"engine.micro_batch_tokens={PROMPT + GROUP * (RESPONSE - 1)}"]
    model = [f"model.gradient_checkpointing={case['checkpointing']}", f"model.dtype={case['dtype']}"]
    config = compose([*lengths, *model, *case["words"]])
    sharded = config.engine.kind == "deepspeed"
    parts = memory(Run(config, sizes=shape), Gpus(ranks=2) if sharded else Gpus())
    kept = parts.optimiser + (parts.weights if sharded else parts.host)
    return parts.gradients + parts.activations + parts.logits, kept


# what a training leaves: nothing of the model, the optimiser or the sampler, whoever trains and samples ---------------
FEW = 2000  # numbers: the smallest matrix of the base has more
VLLM = ("sampler=vllm", "sampler.memory_fraction=0.06")
ONE = (*SMALL, "train.steps=1", "model.dtype=bfloat16")


def alive() -> list[str]:
    """Tensors of more than a few numbers. vLLM keeps shapes of weights, as tensors without any, and for its next engine
    the table of positions."""
    gc.collect()
    tables = [one for one in gc.get_objects() if type(one).__name__ == "RotaryEmbedding"]
    kept = {id(tensor) for table in tables for tensor in table.buffers()}
    found = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor) and not one.is_meta]
    found = [one for one in found if one.numel() > FEW and id(one) not in kept]
    return [f"{type(one).__name__} {one.dtype} {tuple(one.shape)}" for one in found]


def train_all(torchcodec: str, runs: list[list[str]]) -> None:
    """Prints after each run the tensors that are alive. torchcodec: `broken`, as where the system has no ffmpeg, or
    `importable`: vLLM keeps what importing it has raised, with the frames that were on the stack."""
    decoders = types.ModuleType("torchcodec.decoders")
    if torchcodec == "importable":
        decoders.AudioDecoder = object  # type: ignore[attr-defined]
        sys.modules["torchcodec"] = types.ModuleType("torchcodec")
    sys.modules["torchcodec.decoders"] = decoders
    for words in runs:
        train(Run(compose(words)))
        sys.stdout.write(f"{json.dumps(alive())}\n")


STAGES = [("engine=deepspeed", f"engine.zero_stage={stage}") for stage in (1, 2, 3)]


@pytest.mark.disaster
@pytest.mark.deepspeed
@pytest.mark.vllm
@pytest.mark.parametrize(
    ("torchcodec", "more"),
    # DeepSpeed last: it makes a rank of the process
    [("broken", [(), VLLM, STAGES[0], *((*VLLM, *stage) for stage in STAGES)]), ("importable", [VLLM])],
)
def test_a_run_leaves_nothing_in_memory(torchcodec: str, more: list[tuple[str, ...]], tmp_path: Path) -> None:
    runs = [[*ONE, *words, f"store={tmp_path / str(place)}"] for place, words in enumerate(more)]
    ended = Started(train_all, torchcodec, runs).end()
    lines = [line for line in ended.stdout.splitlines() if line.startswith(("[]", '["'))]  # not DeepSpeed's
    assert lines == ["[]"] * len(runs)
