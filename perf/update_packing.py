"""One update (forward, log-probs and entropies, backward, AdamW) on packed tokens against right-padded batches.

The laptop model, 128 sequences of its own (16 prompts x 8 samples), one thread. Right-padded is what trainers without
packing do: prompt + response padded to the longest, plain model, log-softmax over all response positions; `sorted`
first puts sequences of like length into the same four batches. Candidates take turns in one process; the ratio is the
median over turns. The bare matrix products of the packed tokens take their turn too, as the limit.
Run: OMP_NUM_THREADS=1 python -m perf.update_packing [--profile]
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

import tepo
from perf.products import products
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.model.load_policy import load_policy
from tepo.policy.packing.packing import Packed, Tokens, pack
from tepo.problems.procedural.generator import generate as generate_problems
from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.sampling.sampler import SamplingParams

PROMPTS, SAMPLES, NEW_TOKENS = 16, 8, 72
TASKS = dict.fromkeys(("add3", "add4", "mul2", "mul3", "mod4", "gcd", "max4", "lin", "ds6"), 1)
Group = tuple[Tokens, list[Tokens]]


def laptop_groups() -> tuple[PreTrainedModel, list[Group]]:
    """The shipped base model and groups that it sampled."""
    policy = load_policy(str(Path(tepo.__file__).parent / "assets" / "laptop"))
    prompts = [policy.tokenizer.encode(problem.prompt) for problem in generate_problems(TASKS, PROMPTS, 0, "train")]
    sampled = TorchSampler(policy.model, policy.tokenizer).sample(
        prompts, list(range(PROMPTS)), SamplingParams(n=SAMPLES, temperature=1.0, max_new_tokens=NEW_TOKENS)
    )
    return policy.model, [
        (prompt, [response.tokens for response in group]) for prompt, group in zip(prompts, sampled, strict=True)
    ]


def packed_loss(model: PreTrainedModel, groups: list[Group]) -> Tensor:
    """Mean log-prob over all response tokens."""
    packed: Packed = pack(groups)
    return -token_statistics(model, packed).logprobs.mean()


def padded_loss(model: PreTrainedModel, groups: list[Group], parts: int, ordered: bool) -> Tensor:
    """The same from right-padded batches, entropies included."""
    rows = [(len(prompt), np.concatenate([prompt, response])) for prompt, responses in groups for response in responses]
    if ordered:
        rows.sort(key=lambda row: len(row[1]))
    total, sums = sum(len(ids) - start for start, ids in rows), []
    for number in range(parts):
        part = rows[number * len(rows) // parts : (number + 1) * len(rows) // parts]
        width = max(len(ids) for _, ids in part)
        ids = torch.zeros(len(part), width, dtype=torch.long)
        attended, trained = torch.zeros_like(ids), torch.zeros(len(part), width)
        for row, (start, tokens) in enumerate(part):
            ids[row, : len(tokens)] = torch.as_tensor(tokens)
            attended[row, : len(tokens)], trained[row, start : len(tokens)] = 1, 1
        keep = width - min(start for start, _ in part) + 1
        logp = torch.log_softmax(
            model(input_ids=ids, attention_mask=attended, use_cache=False, logits_to_keep=keep).logits[:, :-1], dim=-1
        )
        with torch.no_grad():
            (logp.exp() * logp).sum(-1)  # the entropies, as the packed path gives them
        chosen = logp.gather(2, ids[:, 1 - keep :, None])[..., 0]
        sums.append((chosen * trained[:, 1 - keep :]).sum())
    return -torch.stack(sums).sum() / total


def update(model: PreTrainedModel, loss: Callable[[], Tensor]) -> Callable[[], float]:
    """A call that makes one update and returns its CPU seconds. The step is so small that the model stays as it is."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-12, weight_decay=0.0, fused=True)

    def run() -> float:
        start = time.process_time()
        loss().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return time.process_time() - start

    return run


def measure(turns: int = 15) -> dict[str, Any]:
    """Median CPU seconds of an update, the ratio of the better padded variant to packed,
    and the share of trained tokens."""
    torch.set_num_threads(1)
    model, groups = laptop_groups()
    packed = pack(groups)
    cases = {
        "packed": lambda: packed_loss(model, groups),
        "padded": lambda: padded_loss(model, groups, parts=1, ordered=False),
        "padded, sorted": lambda: padded_loss(model, groups, parts=4, ordered=True),
    }
    values = [float(case().detach()) for case in cases.values()]
    assert max(values) - min(values) < 1e-5, f"not the same work: {values}"
    runs = {name: update(model, case) for name, case in cases.items()}
    runs["bare products"] = products(len(packed.targets))
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns + 2):
        for name, run in runs.items():
            taken = run()
            if turn >= 2:
                seconds[name].append(taken)
    ratios = {
        name: median(theirs / ours for ours, theirs in zip(seconds["packed"], seconds[name], strict=True))
        for name in runs
    }
    return {
        "name": "update on packed tokens against right-padded batches",
        "sequences": len(packed.lengths),
        "tokens": len(packed.targets),
        "seconds": {name: median(values) for name, values in seconds.items()},
        "ratio": ratios["padded"],
        "ratio_sorted": ratios["padded, sorted"],
        "ratio_products": 1 / ratios["bare products"],
        "trained_share": packed.trained_share,
    }


def show(result: dict[str, Any]) -> None:
    """One table."""
    print(f"{result['name']}: {result['sequences']} sequences, {result['tokens']:,} trained tokens, one thread")
    for name, seconds in result["seconds"].items():
        print(f"{name:16} {1e3 * seconds:8.1f} CPU ms {result['tokens'] / seconds:10,.0f} tokens per CPU s")
    print(
        f"packed is {result['ratio']:.2f}x padded, {result['ratio_sorted']:.2f}x padded and sorted, "
        f"and takes {result['ratio_products']:.2f}x its bare products; "
        f"trained / pushed tokens {result['trained_share']:.3f}"
    )


def profile(turns: int = 5) -> None:
    """Print the share of each operation in the CPU time of a packed update, the matrix products together first."""
    torch.set_num_threads(1)
    model, groups = laptop_groups()
    run = update(model, lambda: packed_loss(model, groups))
    for _ in range(3):
        run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(turns):
            run()
    spent = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
    total, products = sum(spent.values()), ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
    print(f"{'matrix products':28} {100 * sum(spent.get(name, 0.0) for name in products) / total:5.1f}%")
    for name, value in sorted(spent.items(), key=lambda item: -item[1])[:16]:
        print(f"{name:28} {100 * value / total:5.1f}%")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="store_true", help="where the packed update spends its time, instead")
    profile() if parser.parse_args().profile else show(measure())
