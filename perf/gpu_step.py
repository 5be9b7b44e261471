"""A whole RL step on one GPU: the embedded sampler, and the updates of the embedded engine, on random Qwen models in bfloat16.

Sampling: 0.5B-shaped Qwen2, groups of 8, responses to the length limit (a random model hardly ever ends one), with and without
CUDA graphs, and the gap between the sampler's and the trainer's log-probs of what was sampled. Updates: `Updater.update` with the TEPO objective,
fp32 masters and AdamW, at 8k context (Qwen2 0.5B) and 16k (Qwen3 0.6B, for which prime-rl publishes 11.9k tokens/s, MFU
11.1% and 12.5 GiB on an H100), without and with gradient checkpointing. Tokens are those
pushed through the model, a group's prompt once. MFU counts 6 operations per weight and token and 12 L H D S / 2 for causal
attention, nothing recomputed, and no log-probs of the old policy, over the GPU's dense bf16 peak.

Run: PYTHONPATH=. python perf/gpu_step.py [--json FILE] [--small]     (under 8 minutes on an H200; --small: a check on CPU)
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tepo.config.schema import DataConfig, EngineConfig, GraderConfig, ModelConfig, RunConfig, SamplerConfig, TrainConfig, WandbConfig
from tepo.objectives import load_objective
from tepo.policy.attention import prepare
from tepo.problems.base import Problem
from tepo.sampling.base import Response
from tepo.sampling.gap import Gap, GapAlarm
from tepo.sampling.torch_sampler import TorchSampler
from tepo.training.flat import FlatRollout
from tepo.training.metrics import Stopwatch
from tepo.training.prompts import Prompt
from tepo.training.rollout import Group
from tepo.training.tallies import Tallies
from tepo.training.torch_engine import TorchEngine
from tepo.training.update import Updater

PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}  # dense bf16, vendor data sheets
PROMPT = 256
_QWEN = {"vocab_size": 151_936, "tie_word_embeddings": True, "eos_token_id": 151_643, "bos_token_id": None, "max_position_embeddings": 40_960}
SHAPES = {
    "qwen2-0.5b": ("qwen2", {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, **_QWEN}),
    "qwen3-0.6b": ("qwen3", {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, **_QWEN}),
    "small": ("qwen2", {**_QWEN, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "eos_token_id": 1}),
}


@dataclass
class Case:
    """What is trained: `sequences` of `context` tokens in two updates, micro-batches of `micro` tokens."""

    shape: str
    context: int
    sequences: int
    micro: int
    checkpointing: bool


def model_of(shape: str, device: str) -> Any:
    """A random model of a shape in bfloat16."""
    kind, values = SHAPES[shape]
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **values), dtype=torch.bfloat16)
    prepare(model)
    return model.eval()


def run_config(case: Case) -> RunConfig:
    """The configuration a run of this case would have."""
    train = TrainConfig(1, case.sequences // 8, 8, 1, 1.0, PROMPT, case.context - PROMPT, max(case.sequences // 16, 1), 1, 1e-6)
    parts = (DataConfig("random", "none"), SamplerConfig(), EngineConfig(micro_batch_tokens=case.micro), train, GraderConfig(), WandbConfig())
    return RunConfig(0, "perf", {"name": "tepo"}, ModelConfig(case.shape, "none", dtype="bfloat16"), *parts)


def rollout_of(case: Case, vocabulary: int, device: str) -> FlatRollout:
    """Random groups of 8 at full length, half of them right."""
    draw = np.random.default_rng(0)
    length = case.context - PROMPT
    flat = np.full(length, -np.log(vocabulary), np.float32)
    groups = []
    for number in range(case.sequences // 8):
        prompt = Prompt(number, Problem(str(number), "", ""), draw.integers(2, vocabulary - 400, PROMPT).tolist())
        responses = [Response(draw.integers(2, vocabulary - 400, length).astype(np.int32), flat, -flat, False) for _ in range(8)]
        groups.append(Group(prompt, responses, np.array([1, 0] * 4, np.float32)))
    return FlatRollout(groups, torch.device(device))


def operations(model: Any, context: int) -> float:
    """Model operations per token at a context, forward and backward."""
    config = model.config
    weights = sum(p.numel() for p in model.parameters())
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 6 * weights + 6 * config.num_hidden_layers * config.num_attention_heads * head * context


def time_updates(case: Case, device: str, turns: int = 3) -> dict[str, Any]:
    """Seconds per update, tokens per second, MFU, peak memory."""
    model, cuda = model_of(case.shape, device), device == "cuda"
    if case.checkpointing:
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    config = run_config(case)
    alarm = GapAlarm(float("inf"), temperature=1.0, sampler_dtype="bfloat16", trainer_dtype="bfloat16")
    updater = Updater(config, load_objective("tepo"), TorchEngine(model, config.train), alarm)
    rollout, taken, updates = rollout_of(case, model.config.vocab_size, device), [], 0.0
    for turn in range(turns + 1):
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        metrics = updater.update(rollout, turn, Stopwatch(), Tallies())
        if cuda:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
        updates = metrics["actor/updates"]
    seconds, tokens = sorted(taken[1:])[turns // 2], len(rollout.pack(range(case.sequences)).tokens)
    result = {**asdict(case), "tokens": tokens, "seconds_per_update": seconds / updates, "tokens_per_second": tokens / seconds, "first_seconds": taken[0]}
    if cuda:
        peak = next((value for name, value in PEAKS.items() if name in torch.cuda.get_device_name()), None)
        result["mfu"] = operations(model, case.context) * tokens / seconds / peak if peak else None
        result["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return result


def time_sampler(shape: str, rows: int, new_tokens: int, graphs: bool, device: str) -> dict[str, Any]:
    """Sampled tokens per second, and the gap to the trainer on one group. graphs: steps as CUDA graphs, on a GPU."""
    model, cuda = model_of(shape, device), device == "cuda"
    sampler = TorchSampler(model, SimpleNamespace(eos_token_id=model.config.eos_token_id), max_rows=rows, cache_bytes=64 << 30, graphs=graphs)
    draw = np.random.default_rng(0)
    prompts = draw.integers(2, model.config.vocab_size - 400, (rows // 8, PROMPT)).tolist()
    sampler.sample(prompts, list(range(rows // 8)), n=8, temperature=1.0, max_new_tokens=32)
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    drawn = sampler.sample(prompts, list(range(rows // 8)), n=8, temperature=1.0, max_new_tokens=new_tokens)
    seconds, tokens = time.perf_counter() - begin, sum(len(response.tokens) for group in drawn for response in group)
    peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else None
    gap = Gap.measure(*both_logprobs(model, prompts[0], drawn[0][:2], device), bound=0.1)
    sizes = {"shape": shape, "rows": rows, "new_tokens": new_tokens, "graphs": graphs and cuda, "seconds": seconds, "tokens": tokens, "tokens_per_second": tokens / seconds, "peak_gib": peak}
    return sizes | {"gap": asdict(gap)}


def both_logprobs(model: Any, prompt: list[int], responses: list[Response], device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The sampler's and the trainer's log-probs of some responses."""
    from tepo.policy.packing import pack
    from tepo.policy.statistics import token_statistics

    with torch.no_grad():
        trainer = token_statistics(model, pack([(prompt, [response.tokens for response in responses])]).to(device), need_entropy=False).logprobs
    return torch.cat([torch.from_numpy(response.logprobs) for response in responses]), trainer


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    for row in rows:
        print("  " + "  ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items() if key != "gap"))
        if "gap" in row:
            print("    gap: " + "  ".join(f"{key} {value:.3g}" for key, value in row["gap"].items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cases = [Case("qwen2-0.5b", 8192, 32, 16_384, False), Case("qwen2-0.5b", 8192, 32, 32_768, True), Case("qwen3-0.6b", 16_384, 16, 16_384, False), Case("qwen3-0.6b", 16_384, 16, 16_384, True)]
    draws = [("qwen2-0.5b", 256, 1024, True), ("qwen2-0.5b", 256, 1024, False), ("qwen2-0.5b", 64, 7936, True)]
    if options.small:
        cases, draws = [Case("small", 512, 16, 1024, False), Case("small", 512, 16, 1024, True)], [("small", 16, 64, True)]
    result: dict[str, Any] = {"torch": torch.__version__, "device": torch.cuda.get_device_name() if device == "cuda" else "cpu", "updates": [], "sampler": []}

    def keep() -> None:
        if options.json:  # after each case: a run cut short leaves what it measured
            options.json.write_text(json.dumps(result, indent=1))

    for case in cases:
        result["updates"].append(time_updates(case, device, turns=1 if options.small else 3))
        show("updates", result["updates"][-1:])
        keep()
    for draw in draws:
        result["sampler"].append(time_sampler(*draw, device=device))
        show("sampler", result["sampler"][-1:])
        keep()


if __name__ == "__main__":
    main()
