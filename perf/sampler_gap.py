"""The gap of vLLM and trainer on a CPU: by the type of vLLM's output matrix, and with syncs left out at a rate of 1e-6.

First table: mean and largest log-prob difference in bfloat16, on the laptop model and on a random Qwen2 of 32,768
words, the output matrix multiplying in bfloat16 (vLLM's choice) and in float32 (ours). Second: mean difference by step
of laptop runs in both types, as they are and with no sync from the end of step 2 on; in bfloat16 also how often a
sampler answered as before. Limits are lifted, so that nothing stops.
Run: OMP_NUM_THREADS=1 python -m perf.sampler_gap [STEPS]
"""

import contextlib
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tepo.config.compose import compose
from tepo.policy.logprobs.chunked import StatisticsOptions
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.model.load_policy import load_policy
from tepo.policy.model.model_location import resolve
from tepo.policy.packing.packing import pack
from tepo.sampling import gap
from tepo.sampling.sampler import SamplingParams
from tepo.sampling.vllm.vllm_sampler import EngineOptions, VllmSampler
from tepo.training.loop import train

PROMPTS, SAMPLES, TOKENS = 16, 4, 100


def wide(folder: Path) -> Path:
    """A random model with a vocabulary."""
    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "max_position_embeddings": 512}
    sizes: dict[str, Any] = {"vocab_size": 32768, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    config = Qwen2Config(**sizes | heads | ends, initializer_range=0.08)
    Qwen2ForCausalLM(config).bfloat16().save_pretrained(folder)
    return folder


def by_head(path: str, model: Any, head: str) -> gap.Gap:
    """Gap over random prompts and sampled responses, where vLLM's output matrix multiplies in a type."""
    EngineOptions.hf_overrides = {"head_dtype": head}  # type: ignore[assignment,method-assign]
    sampler = VllmSampler(EngineOptions(path, "bfloat16", 192, max_rows=64), [1], memory_fraction=0.2)
    draws = torch.Generator().manual_seed(0)
    prompts = torch.randint(2, model.config.vocab_size, (PROMPTS, 20), generator=draws).tolist()
    params = SamplingParams(n=SAMPLES, temperature=1.0, max_new_tokens=TOKENS)
    groups = sampler.sample(prompts, range(PROMPTS), params)
    sampler.close()
    responses = [[response.tokens for response in group] for group in groups]
    with torch.no_grad():
        packed = pack(list(zip(prompts, responses, strict=True)))
        trainer = token_statistics(model, packed, StatisticsOptions(need_entropy=False)).logprobs
    drawn = torch.cat([torch.from_numpy(response.logprobs) for group in groups for response in group])
    return gap.Gap.measure(drawn, trainer, 0.1)


def by_step(store: Path, dtype: str, steps: int, left_out: bool) -> tuple[list[float], int]:
    """Mean gaps of a laptop run, and how often samplers answered as before."""
    seen: list[float] = []
    real, deaf = VllmSampler.sync, []
    warn = gap.GapAlarm._warn

    def sync(self: VllmSampler, weights: Any) -> None:
        if not left_out or len(seen) < 1:
            real(self, weights)

    def count(self: gap.GapAlarm, what: str, fix: str) -> None:
        deaf.extend([1] * ("answer" in what))

    words = [f"model.dtype={dtype}", "objective=grpo", "sampler=vllm", "train.learning_rate=1e-6", f"store={store}"]
    words += [f"train.steps={steps}", "train.prompts_per_step=16", "sampler.gap_bound=1e9"]
    try:
        VllmSampler.sync, gap.GapAlarm._warn = sync, count  # type: ignore[method-assign]
        with contextlib.redirect_stderr(io.StringIO()):
            train(compose(words), lambda step, row: seen.append(row[gap.MEAN]))
    finally:
        VllmSampler.sync, gap.GapAlarm._warn = real, warn  # type: ignore[method-assign]
    return seen, len(deaf)


def main(steps: int) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        for dtype in ("float32", "bfloat16"):
            for left_out in (False, True):
                seen, deaf = by_step(Path(scratch, str(left_out)), dtype, steps, left_out)
                name = f"{dtype}, {'no sync from step 2 on' if left_out else 'as it is'}"
                print(f"{name:34}", *(f"{value:.2g}" for value in seen), f"as before: {deaf} of {steps}", flush=True)
        for name, path in (("laptop", resolve("package:laptop")), ("random, 32,768", str(wide(Path(scratch, "wide"))))):
            model = Qwen2ForCausalLM.from_pretrained(path) if name != "laptop" else load_policy("package:laptop").model
            for head in ("bfloat16", "float32"):
                found = by_head(path, model.bfloat16().eval(), head)
                print(f"{name}, head in {head}: mean {found.mean:.5f}, largest {found.max:.3f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 24)
