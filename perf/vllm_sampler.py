"""Tokens per CPU second of the embedded sampler against vLLM on the CPU, on the laptop model, one thread.

The work of `perf.sampler`, in turns in one process. vLLM runs without seeds and without log-probabilities, in float32,
all rows at a time; eager, since compiling for a model this small costs more than it gives. CPU seconds are of the
process, engine included. Run: OMP_NUM_THREADS=1 python -m perf.vllm_sampler
"""

import statistics
from collections.abc import Callable

import torch

from perf.sampler import LAPTOP, NEW_TOKENS, PROMPTS, SAMPLES, interleaved, laptop_case, sampler_case
from tepo.sampling.vllm.vllm_sampler import import_vllm


def vllm_case(prompts: list[list[int]], eos: int) -> Callable[[int], int]:
    """A call of vLLM on all rows. It returns the number of sampled tokens."""
    vllm = import_vllm()
    llm = vllm.LLM(
        str(LAPTOP),
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=PROMPTS * SAMPLES,
        kv_cache_memory_bytes=256 << 20,
        generation_config="vllm",
        skip_tokenizer_init=True,
        disable_log_stats=True,
    )
    requests = [{"prompt_token_ids": prompt} for prompt in prompts]
    settings = vllm.SamplingParams(
        n=SAMPLES, temperature=1.0, max_tokens=NEW_TOKENS, stop_token_ids=[eos], detokenize=False
    )

    def run(seed: int) -> int:
        outputs = llm.generate(requests, settings, use_tqdm=False)
        return sum(len(completion.token_ids) for output in outputs for completion in output.outputs)

    return run


def measure(turns: int = 7) -> dict[str, float]:
    """Medians of tokens per CPU second, and of the ratio turn by turn."""
    torch.set_num_threads(1)
    model, tokenizer, prompts = laptop_case()
    rates = interleaved(
        {"tepo": sampler_case(model, tokenizer, prompts), "vllm": vllm_case(prompts, tokenizer.eos_token_id)}, turns
    )
    ratio = statistics.median(ours / theirs for ours, theirs in zip(rates["tepo"], rates["vllm"], strict=True))
    return {name: statistics.median(values) for name, values in rates.items()} | {"ratio": ratio}


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:6} {value:10.2f}" if name == "ratio" else f"{name:6} {value:10.0f} tokens / CPU s")
