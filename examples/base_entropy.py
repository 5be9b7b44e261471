"""Entropy that RL can lose: that of a base in nats per sampled token, of numbers and operators apart from other words,
and how often it is right. One thread, about a minute a task for a model of 135M parameters.

    tepo model fetch smollm2-135m-wordings
    python examples/base_entropy.py cache:smollm2-135m-wordings words2 words3

On a CPU that has no instructions for bfloat16, `--dtype float32` is many times faster.
"""

import argparse
import re

import numpy as np
import torch

from tepo.common.randomness import derive
from tepo.policy.model.load_policy import load_policy
from tepo.problems.grader import Grader
from tepo.problems.procedural.generator import generate
from tepo.problems.prompt_format import encode_prompts
from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.sampling.sampler import SamplingParams

SAMPLES, LIMIT, SEED = 4, 64, 7
ARITHMETIC = re.compile(r"\s*[-+*/=0-9]+\s*")


def main(path: str, tasks: list[str], dtype: str, count: int) -> None:
    torch.set_num_threads(1)
    policy = load_policy(path, dtype=dtype)
    tokenizer, sampler = policy.tokenizer, TorchSampler(policy.model, policy.tokenizer, max_rows=128)
    print("task         right %  nats a token  numbers and operators  other words  tokens")
    for task in tasks:
        problems = generate({task: 1}, count, SEED, "validation")
        asked = encode_prompts(problems, tokenizer, prompt="boxed")
        keys = [derive(SEED, "entropy", task, number) for number in range(count)]
        params = SamplingParams(n=SAMPLES, temperature=1.0, max_new_tokens=LIMIT, stop=asked.stop)
        groups = sampler.sample(asked.tokens, keys, params)
        responses = [response for group in groups for response in group]
        entropies = np.concatenate([response.entropies for response in responses if response.entropies is not None])
        words = [tokenizer.decode([token]) for response in responses for token in response.tokens]
        numbers = np.array([bool(ARITHMETIC.fullmatch(word)) for word in words])
        golds = [problem.answer for problem in problems for _ in range(SAMPLES)]
        texts = [tokenizer.decode(response.tokens, skip_special_tokens=True) for response in responses]
        with Grader() as grader:
            right = np.mean([verdict.correct for verdict in grader.grade(list(zip(golds, texts, strict=True)))])
        means = entropies.mean(), entropies[numbers].mean(), entropies[~numbers].mean()
        print(f"{task:<11}  {100 * right:7.1f}  {means[0]:12.2f}  {means[1]:21.2f}  {means[2]:11.2f}", end="")
        print(f"  {len(entropies) / len(responses):6.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--problems", type=int, default=64)
    words = parser.parse_args()
    main(words.model, words.tasks, words.dtype, words.problems)
