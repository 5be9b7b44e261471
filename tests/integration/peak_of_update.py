"""Prints the most bytes that torch held during updates of two micro-batches. Run by test_memory_peaks.py in a process
of its own, or in two ranks."""

import gc
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import Qwen2Config, Qwen2ForCausalLM

from tepo.config.compose import compose
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.model.lora import add_adapters
from tepo.policy.model.packed_attention import prepare
from tepo.policy.packing.packing import pack
from tepo.training.distributed import process_group
from tepo.training.engine.engine import Engine

SECOND = "second update"


def allocated(run: Callable[[], None]) -> tuple[list[int], list[int]]:
    """Totals of torch's allocations, which count from the start of `run`: before its part SECOND, and from there on."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as made:
        run()
    events = list(flat(made.profiler.kineto_results.experimental_event_tree()))
    (begin,) = (event.start_time_ns for event in events if event.name == SECOND)
    totals = sorted(
        (event.start_time_ns, event.extra_fields.total_allocated)
        for event in events
        if hasattr(event.extra_fields, "total_allocated")
    )
    return [total for time, total in totals if time < begin], [total for time, total in totals if time >= begin]


def flat(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        yield from flat(event.children)


class Updates:
    """Of a model with random weights. lengths: of the prompt, of a response, and how many responses. words: overrides
    of engine and adapters."""

    def __init__(
        self, sizes: dict[str, Any], lengths: tuple[int, int, int], words: list[str], checkpointing: bool, dtype: str
    ):
        torch.manual_seed(0)
        self.model = Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=True)).to(getattr(torch, dtype))
        if checkpointing:
            self.model.train()
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        prepare(self.model)
        self.config = compose([f"model.dtype={dtype}", *words])
        if self.config.model.lora_rank:
            add_adapters(self.model, self.config.model.lora_rank, self.config.model.lora_alpha, 0)
        prompt, response, group = lengths
        self.packed = pack([([3] * prompt, [[5] * response] * group)])

    def update(self) -> None:
        for _ in range(2):
            self.engine.backward(-token_statistics(self.model, self.packed).logprobs.mean())
        self.engine.step(1e-4)
        self.engine.weights()  # as after each rollout

    def opened(self) -> Engine:
        if self.config.engine.kind == "deepspeed":
            from tepo.training.engine.deepspeed_engine import DeepSpeedEngine

            return DeepSpeedEngine(self.model, self.config)
        from tepo.training.engine.torch_engine import TorchEngine

        return TorchEngine(self.model, self.config.train, self.config.engine)

    def two(self) -> None:
        """The first makes Adam's moments, which the second has from its start. All is freed at the end: what is freed
        after a profile is counted as held in the next."""
        before = storages()  # not freed, so that nothing new takes their addresses
        self.engine = self.opened()
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


def peaks(case: dict[str, Any]) -> dict[str, int]:
    """kept: by the optimiser; one: of the second update, above that; all: of engine and updates, above the weights.

    What is kept is summed over tensors, not taken from the profile, which misses what gloo's threads free."""
    updates = Updates(**case)
    first, second = allocated(updates.two)
    return {"kept": updates.held, "one": max(second) - first[-1], "all": max(first + second)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = [peaks(case) for case in json.loads(sys.argv[1])]
    if process_group.rank() == 0:
        sys.stdout.write(json.dumps(found))
