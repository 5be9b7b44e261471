"""Part sampler: tokens a second of the embedded sampler with and without CUDA graphs, the same tokens from both, and
the gap to the trainer.

The limit of its speed is the memory's bandwidth: every step reads the weights and the cache so far.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from perf.gpu.models import GROUP, PROMPT, model_of
from perf.gpu.record import Figure
from perf.gpu.timing import bandwidth, once
from tepo.policy.logprobs.softmax_at_temperature import StatisticsOptions
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.packing.packing import pack
from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.sampling.gap import Gap, default_bound
from tepo.sampling.sampler import Response, SamplingParams


class Draw(NamedTuple):
    """`rows` responses of `tokens` (a random model hardly ever ends one), groups of 8."""

    shape: str
    rows: int
    tokens: int


def sampler(device: str, small: bool) -> Iterator[Figure]:
    """Speed with and without graphs, whether they draw the same, and the gap to the trainer."""
    exact = Draw("small", 64, 200) if device == "cuda" else Draw("small", 8, 24)  # several graphs, and rows that end
    model = model_of("small", device, torch.float32)
    same = agreement(*(draw(model, exact, graphs)[0] for graphs in (True, False)))
    # rounding may move one draw over an edge
    yield Figure("float32: same tokens with and without graphs", "share", same, 0.98, ">=")
    case = Draw("small", 8, 24) if small else Draw("qwen2.5-0.5b", 256, 384)
    model, drawn = model_of(case.shape, device), {}
    limit = bandwidth(device) / bytes_per_token(model, case)
    for graphs in (True, False):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        drawn[graphs], seconds = draw(model, case, graphs)
        name = f"sampled, {'with' if graphs else 'without'} graphs"
        note = f"{case.rows} rows, {case.shape}" + ("" if device == "cuda" else "; a CPU has no graphs")
        rate = sum(len(response.tokens) for response in drawn[graphs]) / seconds
        yield Figure(name, "tokens/s", rate, limit, note=note)
        if device == "cuda":
            yield Figure(f"{name}: peak memory", "GiB", torch.cuda.max_memory_allocated() / 2**30)
    yield Figure("bfloat16: same tokens until the first difference", "share", agreement(drawn[True], drawn[False]))
    responses = drawn[True][:2]
    packed = pack([(prompts_of(model, case)[0], [response.tokens for response in responses])]).to(device)
    with torch.no_grad():
        trainer = token_statistics(model, packed, StatisticsOptions(need_entropy=False)).logprobs
    logprobs, bound = torch.cat([torch.from_numpy(one.logprobs) for one in responses]), default_bound("bfloat16")
    gap = Gap.measure(logprobs, trainer, bound)
    yield Figure("gap of sampler and trainer, mean log-prob", "nats", gap.mean, bound, "<=")


def prompts_of(model: Any, case: Draw) -> list[list[int]]:
    """Random prompts, one for each group."""
    draws = np.random.default_rng(0)
    return draws.integers(2, model.config.vocab_size - 400, (case.rows // GROUP, PROMPT)).tolist()


def draw(model: Any, case: Draw, graphs: bool) -> tuple[list[Response], float]:
    """Responses of the embedded sampler and the seconds that they took, after a short call to warm up."""
    prompts, drawn = prompts_of(model, case), []
    tokenizer = SimpleNamespace(eos_token_id=model.config.eos_token_id)
    embedded = TorchSampler(model, tokenizer, max_rows=case.rows, graphs=graphs)

    def sample(tokens: int) -> None:
        given = SamplingParams(n=GROUP, temperature=1.0, max_new_tokens=tokens)
        drawn[:] = [one for group in embedded.sample(prompts, list(range(len(prompts))), given) for one in group]

    sample(8)
    return drawn, once(lambda: sample(case.tokens), model.device.type)


def bytes_per_token(model: Any, case: Draw) -> float:
    """Bytes that a sampled token must read: its share of the weights, and the cache of its row at half length."""
    config, size = model.config, model.dtype.itemsize
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    weights = sum(p.numel() for p in model.get_decoder().layers.parameters()) + model.lm_head.weight.numel()
    cache = 2 * config.num_hidden_layers * config.num_key_value_heads * width * (PROMPT + case.tokens / 2)
    return size * (weights / case.rows + cache)


def agreement(one: list[Response], other: list[Response]) -> float:
    """Share of tokens that are equal up to the first difference in each response."""
    same = total = 0
    for left, right in zip(one, other, strict=True):
        length = min(len(left.tokens), len(right.tokens))
        differs = np.flatnonzero(left.tokens[:length] != right.tokens[:length])
        same += int(differs[0]) if len(differs) else length
        total += max(len(left.tokens), len(right.tokens))
    return same / total
