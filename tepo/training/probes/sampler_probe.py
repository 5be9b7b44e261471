"""The embedded sampler on random models: tokens a second with and without CUDA graphs, the same tokens from both, the
gap.

The limit of its speed is the memory's bandwidth: every step reads the weights and the cache so far.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tepo.policy.logprobs.softmax_at_temperature import StatisticsOptions
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.packing.packing import pack
from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.sampling.gap import Gap, default_bound
from tepo.sampling.sampler import Response, SamplingParams
from tepo.training.probes.models import GROUP, PROMPT, model_of
from tepo.training.probes.probe_record import Figure
from tepo.training.probes.timing import bandwidth, wait

Drawn = list[list[Response]]


@dataclass
class Case:
    """`rows` responses of `new_tokens` (a random model hardly ever ends one), groups of 8."""

    shape: str
    rows: int
    new_tokens: int


SIZES = {"small": Case("small", 8, 24), "short": Case("short", 64, 160), "full": Case("qwen2.5-0.5b", 256, 384)}


def figures(device: str, case: Case) -> Iterator[Figure]:
    """Speed with and without graphs, whether they draw the same, and the gap to the trainer."""
    small = Case("small", 64, 200) if device == "cuda" else SIZES["small"]  # several graphs, and rows that end
    model = model_of("small", device, torch.float32)
    same = agreement(*(draw(model, small, graphs)["drawn"] for graphs in (True, False)))
    # rounding may move one draw over an edge
    yield Figure("float32: same tokens with and without graphs", "share", same, 0.98, ">=")
    model, drawn = model_of(case.shape, device), {}
    copies = bandwidth(device)
    for graphs in (True, False):
        measured = draw(model, case, graphs)
        drawn[graphs] = measured["drawn"]
        name = f"sampled, {'with' if graphs else 'without'} graphs"
        limit = copies / bytes_per_token(model, case)
        note = f"{case.rows} rows, {case.shape}" + ("" if device == "cuda" else "; a CPU has no graphs")
        yield Figure(name, "tokens/s", measured["tokens"] / measured["seconds"], limit, note=note)
        if device == "cuda":
            yield Figure(f"{name}: peak memory", "GiB", measured["peak_gib"])
    yield Figure("bfloat16: same tokens until the first difference", "share", agreement(drawn[True], drawn[False]))
    prompt, responses = prompts_of(model, case)[0], drawn[True][0][:2]
    packed = pack([(prompt, [response.tokens for response in responses])]).to(device)
    with torch.no_grad():
        trainer = token_statistics(model, packed, StatisticsOptions(need_entropy=False)).logprobs
    sampler = torch.cat([torch.from_numpy(response.logprobs) for response in responses])
    bound = default_bound("bfloat16")
    gap = Gap.measure(sampler, trainer, bound)
    yield Figure("gap of sampler and trainer, mean log-prob", "nats", gap.mean, bound, "<=")


def prompts_of(model: Any, case: Case) -> list[list[int]]:
    """Random prompts, one for each group."""
    draws = np.random.default_rng(0)
    return draws.integers(2, model.config.vocab_size - 400, (case.rows // GROUP, PROMPT)).tolist()


def draw(model: Any, case: Case, graphs: bool) -> dict[str, Any]:
    """Groups from the embedded sampler and the seconds that they took, after a short call to warm up."""
    device, prompts = model.device.type, prompts_of(model, case)
    tokenizer = SimpleNamespace(eos_token_id=model.config.eos_token_id)
    sampler, keys = TorchSampler(model, tokenizer, max_rows=case.rows, graphs=graphs), list(range(len(prompts)))
    sampler.sample(prompts, keys, SamplingParams(n=GROUP, temperature=1.0, max_new_tokens=8))
    wait(device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    drawn = sampler.sample(prompts, keys, SamplingParams(n=GROUP, temperature=1.0, max_new_tokens=case.new_tokens))
    measured = {"seconds": time.perf_counter() - begin, "drawn": drawn}
    measured["tokens"] = sum(len(response.tokens) for group in drawn for response in group)
    if device == "cuda":
        measured["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return measured


def bytes_per_token(model: Any, case: Case) -> float:
    """Bytes that a sampled token must read: its share of the weights, and the cache of its row at half length."""
    config, size = model.config, model.dtype.itemsize
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    weights = sum(p.numel() for p in model.get_decoder().layers.parameters()) + model.lm_head.weight.numel()
    cache = 2 * config.num_hidden_layers * config.num_key_value_heads * width * (PROMPT + case.new_tokens / 2)
    return size * (weights / case.rows + cache)


def agreement(one: Drawn, other: Drawn) -> float:
    """Share of tokens that are equal up to the first difference in each response."""
    same = total = 0
    for left, right in zip((r for group in one for r in group), (r for group in other for r in group), strict=True):
        length = min(len(left.tokens), len(right.tokens))
        differs = np.flatnonzero(left.tokens[:length] != right.tokens[:length])
        same += int(differs[0]) if len(differs) else length
        total += max(len(left.tokens), len(right.tokens))
    return same / total
