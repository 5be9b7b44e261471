"""Cost of an objective itself: `prepare`, `loss` and its backward pass down to the log-probs, in CPU milliseconds a
mini-batch.

    python perf/objective_cost.py [--sequences 128] [--tokens 27] [--update-ms 90] [--rows tepo,gspo]

Target: at most 5% of an update's CPU time at laptop scale. The update's cost is an argument, as measured by a training
run (`perf/cpu_s` and `timing_s/update_actor` in its metrics). Medians of several rounds,
the rows interleaved, one thread.
"""

import argparse
import statistics
import time
from dataclasses import replace

import torch

from tepo.objectives import Groups, Objective, TokenBatch, load_objective, names


def mini_batch(sequences: int, tokens: int, generator: torch.Generator) -> tuple[Groups, TokenBatch]:
    """Synthetic tensors in the shape of a laptop mini-batch:
    groups of 8, lengths around `tokens`, a policy a few updates old."""
    lengths = torch.randint(max(1, tokens // 2), tokens + tokens // 2 + 1, (sequences,), generator=generator)
    total = int(lengths.sum())
    rewards = (torch.rand(sequences, generator=generator) < 0.5).float()
    old = -torch.rand(total, generator=generator) * 2
    entropies = torch.rand(total, generator=generator)
    groups = Groups(
        rewards, torch.arange(sequences) // 8, lengths, entropies, torch.ones(sequences, dtype=torch.bool), 72
    )
    batch = TokenBatch(
        old_logprobs=old,
        advantages=torch.zeros(total),
        lengths=lengths,
        logprobs=old + 0.1 * torch.randn(total, generator=generator),
        entropies=entropies + 0.01 * torch.randn(total, generator=generator),
        old_entropies=entropies,
        initial_logprobs=old - 0.1,
        sampler_logprobs=old,
        full_kl=torch.rand(total, generator=generator),
        uid=torch.arange(sequences),
        group_ids=groups.group_ids,
        finished=groups.finished,
        max_new_tokens=72,
    )
    return groups, batch


def cost(objective: Objective, batch: TokenBatch) -> float:
    """CPU seconds of one mini-batch in one micro-batch."""
    leaves = [value.clone().requires_grad_() for value in (batch.logprobs, batch.entropies, batch.full_kl)]  # type: ignore[union-attr]
    given = replace(
        batch,
        logprobs=leaves[0],
        entropies=leaves[1] if objective.needs.entropy_gradient else batch.entropies,
        full_kl=leaves[2],
    )
    begin = time.process_time()
    plan = objective.prepare(given)
    objective.loss(given, plan).loss.backward()
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=27, help="mean response length")
    parser.add_argument(
        "--update-ms", type=float, default=90.0, help="CPU milliseconds of a whole update, to set the cost against"
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--rows", default=",".join(names()))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    groups, batch = mini_batch(arguments.sequences, arguments.tokens, torch.Generator().manual_seed(0))
    rows = {name: load_objective(name) for name in arguments.rows.split(",")}
    advantages: dict[str, tuple[float, torch.Tensor]] = {}
    for name, objective in rows.items():
        begin = time.process_time()
        made = objective.advantages(groups)
        advantages[name] = (time.process_time() - begin, made)
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(arguments.rounds):
        for name, objective in rows.items():
            seconds[name].append(cost(objective, replace(batch, advantages=advantages[name][1])))
    print(
        f"{arguments.sequences} sequences, {int(batch.lengths.sum())} tokens, "
        f"update of {arguments.update_ms:g} ms CPU, torch {torch.__version__}, 1 thread, {arguments.rounds} rounds"
    )
    print(f"{'row':22}{'median ms':>11}{'best ms':>10}{'share':>8}{'advantages ms (once a rollout)':>34}")
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name in sorted(rows, key=lambda name: -medians[name]):
        share = medians[name] * 1e5 / arguments.update_ms
        print(
            f"{name:22}{medians[name] * 1e3:11.2f}{min(seconds[name]) * 1e3:10.2f}{share:7.1f}%"
            f"{advantages[name][0] * 1e3:34.2f}"
        )


if __name__ == "__main__":
    main()
