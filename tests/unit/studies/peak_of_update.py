"""Prints the most bytes that torch held during one update of two micro-batches, above weights and optimiser.
Run by test_memory.py in a process of its own."""

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen2Config, Qwen2ForCausalLM

from tepo.config.compose import compose
from tepo.policy.attention import prepare
from tepo.policy.lora import add_adapters
from tepo.policy.packing import pack
from tepo.policy.token_statistics import token_statistics
from tepo.training.torch_engine import TorchEngine


def peak(run: Callable[[], None]) -> int:
    """The highest total of torch's allocations, which counts from the start of the profile."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as made:
        run()
    assert made.profiler is not None
    assert made.profiler.kineto_results is not None
    return highest(made.profiler.kineto_results.experimental_event_tree())


def highest(events: Iterable[Any]) -> int:
    return max(
        (max(getattr(event.extra_fields, "total_allocated", 0), highest(event.children)) for event in events), default=0
    )


def update(
    sizes: dict[str, Any], checkpointing: bool, dtype: str, prompt: int, response: int, group: int, rank: int = 0
) -> int:
    """Of the second update, which has Adam's moments from the first."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=True)).to(getattr(torch, dtype))
    if checkpointing:
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    prepare(model)
    if rank:
        add_adapters(model, rank, 32.0, 0)
    engine = TorchEngine(model, compose([]).train)
    packed = pack([([3] * prompt, [[5] * response] * group)])

    def run() -> None:
        for _ in range(2):
            engine.backward(-token_statistics(model, packed).logprobs.mean())
        engine.step(1e-4)

    run()
    return peak(run)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps([update(**case) for case in json.loads(sys.argv[1])]))
