"""Tokens per CPU second of the embedded sampler against `transformers` generate(), on the laptop model, one thread.

64 prompts of the laptop training mix x 8 samples at temperature 1, at most 72 new tokens; stop at the end of sequence.
Candidates take turns in one process and the ratio is the median over turns, so that a busy machine slows all alike.
Ours returns log-probabilities and entropies as well, generate() tokens alone. The limit beside them is the bare matrix
products of as many decode steps.
Run: OMP_NUM_THREADS=1 python -m perf.sampler
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import tepo
from perf.products import products
from tepo.problems.procedural.generator import generate as generate_problems
from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.sampling.sampler import SamplingParams

PROMPTS, SAMPLES, NEW_TOKENS = 64, 8, 72
TASKS = dict.fromkeys(("add3", "add4", "mul2", "mul3", "mod4", "gcd", "max4", "lin", "ds6"), 1)
LAPTOP = Path(tepo.__file__).parent / "assets" / "laptop"


def laptop_case() -> tuple:
    """The shipped base model, its tokenizer and the prompts of one rollout."""
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(LAPTOP, dtype=torch.float32).eval(),
        AutoTokenizer.from_pretrained(LAPTOP),
    )
    return (
        model,
        tokenizer,
        [tokenizer.encode(problem.prompt) for problem in generate_problems(TASKS, PROMPTS, 0, "train")],
    )


def generate_case(model, tokenizer, prompts: list[list[int]], cache: str) -> Callable[[int], int]:
    """A call of generate() on all rows, as sparing as it goes: no top-k, tokens alone.
    It returns the number of sampled tokens."""
    longest, eos = max(map(len, prompts)), tokenizer.eos_token_id
    ids = torch.tensor([[eos] * (longest - len(p)) + p for p in prompts]).repeat_interleave(SAMPLES, dim=0)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts]).repeat_interleave(SAMPLES, dim=0)
    settings = {
        "do_sample": True,
        "top_k": 0,
        "top_p": 1.0,
        "temperature": 1.0,
        "max_new_tokens": NEW_TOKENS,
        "cache_implementation": cache,
    }

    def run(seed: int) -> int:
        torch.manual_seed(seed)
        with torch.inference_mode():
            new = model.generate(
                ids, attention_mask=mask, pad_token_id=eos, eos_token_id=eos, disable_compile=True, **settings
            )[:, longest:]
        return int((new != eos).sum() + (new == eos).any(1).sum())

    return run


def sampler_case(model, tokenizer, prompts: list[list[int]]) -> Callable[[int], int]:
    """The same rows by the embedded sampler."""
    sampler = TorchSampler(model, tokenizer)

    def run(seed: int) -> int:
        keys = [seed * PROMPTS + i for i in range(PROMPTS)]
        groups = sampler.sample(prompts, keys, SamplingParams(n=SAMPLES, temperature=1.0, max_new_tokens=NEW_TOKENS))
        return sum(len(response.tokens) for group in groups for response in group)

    return run


def products_case() -> Callable[[int], int]:
    """The matrix products of decode steps in which every row takes part."""
    rows, steps = PROMPTS * SAMPLES, 27
    step = products(rows, backward=False)

    def run(seed: int) -> int:
        for _ in range(steps):
            step()
        return rows * steps

    return run


def interleaved(cases: dict[str, Callable[[int], int]], turns: int) -> dict[str, list[float]]:
    """Tokens per CPU second of each case in each turn, after one turn to warm up."""
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(turns + 1):
        for name, run in cases.items():
            start = time.process_time()
            tokens = run(turn)
            rates[name].append(tokens / (time.process_time() - start))
    return {name: values[1:] for name, values in rates.items()}


def measure(turns: int = 7) -> dict[str, float]:
    """Medians of tokens per CPU second, of the ratio to the better generate() of the same turn, and of the cost of a
    token in bare products."""
    torch.set_num_threads(1)
    model, tokenizer, prompts = laptop_case()
    peers = {f"generate_{cache}": generate_case(model, tokenizer, prompts, cache) for cache in ("dynamic", "static")}
    ours = sampler_case(model, tokenizer, prompts)
    rates = interleaved({"tepo": ours, "bare_products": products_case(), **peers}, turns)
    ratios = [rate / max(rates[peer][turn] for peer in peers) for turn, rate in enumerate(rates["tepo"])]
    costs = [bare / rate for rate, bare in zip(rates["tepo"], rates["bare_products"], strict=True)]
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return medians | {"ratio": statistics.median(ratios), "ratio_products": statistics.median(costs)}


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:18} {value:10.2f}" if name.startswith("ratio") else f"{name:18} {value:10.0f} tokens / CPU s")
