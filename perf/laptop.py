"""The laptop policy's sampling, updates and steps, one thread each.

sampler: tokens per CPU second of the embedded sampler beside transformers' generate() in its better setting (tokens
alone, no top-k; ours gives log-probs and entropies as well), and beside the bare matrix products of its decode steps.
vllm: beside vLLM's CPU build in float32, eager, without log-probs; compiling for a model this small costs more than it
gives. update: forward, log-probs and entropies, backward and AdamW on packed tokens beside right-padded batches with a
plain model, which is what trainers without packing do. limit: a training step beside the bare products that its updates
cannot avoid (three for each linear layer and trained token), and TEPO's beside GRPO/DAPO's. objective: prepare, loss
and backward on 16,100 tokens, metrics included, beside a clipped loss written out in torch by hand.
"""

import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

import tepo
from perf.ratios import BenchmarkRow, Unavailable, beside, cpu_seconds, in_turn, products
from tepo.config.compose import compose
from tepo.objectives import Groups, TokenBatch, load_objective
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.model.load_policy import Policy, load_policy
from tepo.policy.packing.packing import Tokens, pack
from tepo.problems.procedural.generator import generate as generate_problems
from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.sampling.sampler import SamplingParams
from tepo.store.run_folder import RunFolder
from tepo.training.loop import train
from tepo.training.run import Run

SAMPLES, NEW_TOKENS, UPDATES = 8, 72, 8
TASKS = dict.fromkeys(("add3", "add4", "mul2", "mul3", "mod4", "gcd", "max4", "lin", "ds6"), 1)
LAPTOP = str(Path(tepo.__file__).parent / "assets" / "laptop")
OBJECTIVES = ("grpo_dapo", "tepo", "gspo", "steer", "clip_cov")
Group = tuple[Tokens, list[Tokens]]
_HIGHER = {"higher_is_better": True, "guarded": True}


def laptop(count: int) -> tuple[Policy, list[Tokens]]:
    """The shipped base, and prompts of its training mix."""
    torch.set_num_threads(1)
    policy = load_policy(LAPTOP)
    return policy, [policy.tokenizer.encode(one.prompt) for one in generate_problems(TASKS, count, 0, "train")]


def rate(sample: Callable[[int], int]) -> Callable[[int], float]:
    """A side with the tokens per CPU second of a call."""

    def run(turn: int) -> float:
        started = time.process_time()
        tokens = sample(turn)
        return tokens / (time.process_time() - started)

    return run


def embedded(policy: Policy, prompts: list[Tokens]) -> Callable[[int], float]:
    """The embedded sampler."""
    own = TorchSampler(policy.model, policy.tokenizer)

    def sample(turn: int) -> int:
        keys = [turn * len(prompts) + i for i in range(len(prompts))]
        groups = own.sample(prompts, keys, SamplingParams(n=SAMPLES, temperature=1.0, max_new_tokens=NEW_TOKENS))
        return sum(len(response.tokens) for group in groups for response in group)

    return rate(sample)


def generated(policy: Policy, prompts: list[Tokens], kind: str) -> Callable[[int], float]:
    """generate() on all rows at once, with a kind of cache."""
    longest, eos = max(map(len, prompts)), policy.tokenizer.eos_token_id
    ids = torch.tensor([[eos] * (longest - len(p)) + p for p in prompts]).repeat_interleave(SAMPLES, dim=0)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts]).repeat_interleave(SAMPLES, dim=0)
    settings = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "max_new_tokens": NEW_TOKENS}
    settings |= {"cache_implementation": kind, "pad_token_id": eos, "eos_token_id": eos, "disable_compile": True}

    def sample(turn: int) -> int:
        torch.manual_seed(turn)
        with torch.inference_mode():
            new = policy.model.generate(ids, attention_mask=mask, **settings)[:, longest:]
        return int((new != eos).sum() + (new == eos).any(1).sum())

    return rate(sample)


def sampler(turns: int, short: bool) -> list[BenchmarkRow]:
    policy, prompts = laptop(64)
    kinds, bare, steps = ("dynamic", "static"), len(prompts) * SAMPLES, 27
    plain = Policy(AutoModelForCausalLM.from_pretrained(LAPTOP, dtype=torch.float32).eval(), policy.tokenizer)
    sides = {"tepo": embedded(policy, prompts)} | {kind: generated(plain, prompts, kind) for kind in kinds}
    found = in_turn(sides | {"bare": cpu_seconds(products(policy.model.config, bare, False, steps))}, 3 * turns)
    best = [max(pair) for pair in zip(*(found[kind] for kind in kinds), strict=True)]
    costs, limit = [1e6 / one for one in found["tepo"]], [1e6 * one / (bare * steps) for one in found["bare"]]
    return [
        beside("sampler / transformers generate()", "tokens/CPU s", found["tepo"], best, 4.0, **_HIGHER),
        beside("sampler / its bare matrix products", "CPU us a token", costs, limit, 3.5, guarded=True),
    ]


def vllm(turns: int, short: bool) -> list[BenchmarkRow]:
    if find_spec("vllm") is None:
        raise Unavailable("vLLM is not installed (make engines)")
    from tepo.sampling.vllm.vllm_sampler import import_vllm

    policy, prompts = laptop(64)
    engines, eos = import_vllm(), policy.tokenizer.eos_token_id
    room = {"max_model_len": 128, "max_num_seqs": len(prompts) * SAMPLES, "kv_cache_memory_bytes": 256 << 20}
    plain = {"generation_config": "vllm", "skip_tokenizer_init": True, "disable_log_stats": True}
    engine = engines.LLM(LAPTOP, dtype="float32", enforce_eager=True, **room, **plain)
    asked = engines.SamplingParams(
        n=SAMPLES, temperature=1.0, max_tokens=NEW_TOKENS, stop_token_ids=[eos], detokenize=False
    )

    def sample(turn: int) -> int:
        drawn = engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], asked, use_tqdm=False)
        return sum(len(one.token_ids) for out in drawn for one in out.outputs)

    found = in_turn({"tepo": embedded(policy, prompts), "vllm": rate(sample)}, turns)
    return [beside("sampler / vLLM on CPU", "tokens/CPU s", found["tepo"], found["vllm"], 2.0, higher_is_better=True)]


def padded_loss(model: Any, groups: list[Group]) -> Tensor:
    """Mean negative log-prob of the response tokens from one right-padded batch, entropies included."""
    rows = [(len(prompt), np.concatenate([prompt, response])) for prompt, responses in groups for response in responses]
    width = max(len(ids) for _, ids in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    attended, trained = torch.zeros_like(ids), torch.zeros(len(rows), width)
    for row, (start, tokens) in enumerate(rows):
        ids[row, : len(tokens)] = torch.as_tensor(tokens)
        attended[row, : len(tokens)], trained[row, start : len(tokens)] = 1, 1
    keep = width - min(start for start, _ in rows) + 1
    logits = model(input_ids=ids, attention_mask=attended, use_cache=False, logits_to_keep=keep).logits[:, :-1]
    logp = torch.log_softmax(logits, dim=-1)
    with torch.no_grad():
        (logp.exp() * logp).sum(-1)  # the entropies, as the packed path gives them
    chosen = logp.gather(2, ids[:, 1 - keep :, None])[..., 0]
    return -(chosen * trained[:, 1 - keep :]).sum() / trained.sum()


def update(turns: int, short: bool) -> list[BenchmarkRow]:
    policy, prompts = laptop(16)
    drawn = TorchSampler(policy.model, policy.tokenizer).sample(
        prompts, list(range(len(prompts))), SamplingParams(n=SAMPLES, temperature=1.0, max_new_tokens=NEW_TOKENS)
    )
    groups = [(prompt, [one.tokens for one in group]) for prompt, group in zip(prompts, drawn, strict=True)]
    model, packed = policy.model, pack(groups)
    losses = {
        "packed": lambda: -token_statistics(model, pack(groups)).logprobs.mean(),
        "padded": lambda: padded_loss(model, groups),
    }
    values = [float(loss().detach()) for loss in losses.values()]
    assert abs(values[0] - values[1]) < 1e-5, f"not the same work: {values}"

    def updated(loss: Callable[[], Tensor]) -> Callable[[], None]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-12, weight_decay=0.0, fused=True)  # the model stays

        def run() -> None:
            loss().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return run

    works = {name: updated(loss) for name, loss in losses.items()} | {
        "bare": products(model.config, len(packed.targets))
    }
    spent = in_turn({name: cpu_seconds(work) for name, work in works.items()}, 3 * turns, warm=2)
    rates = {name: [len(packed.targets) / one for one in spent[name]] for name in losses}
    share = len(packed.targets) / len(packed.tokens)
    return [
        beside("update, packed / right-padded", "tokens/CPU s", rates["packed"], rates["padded"], 1.7, **_HIGHER),
        BenchmarkRow("update, trained / pushed tokens", "share", share, 1.0, share, 0.95, **_HIGHER),
        beside("update / its bare matrix products", "CPU s", spent["packed"], spent["bare"], 2.5, guarded=True),
    ]


def limit(turns: int, short: bool) -> list[BenchmarkRow]:
    """Training steps after the first, over two rounds in which the objectives take turns."""
    torch.set_num_threads(1)
    shapes = AutoConfig.from_pretrained(LAPTOP)

    def steps(name: str) -> tuple[list[float], list[float]]:
        with tempfile.TemporaryDirectory() as store:
            config = compose([f"objective={name}", f"train.steps={turns + 1}", f"store={store}"])
            train(Run(config))
            rows = RunFolder.of(config).metrics()[1:]
        tokens = median(row["perf/trained_tokens"] for row in rows) / (UPDATES / config.train.epochs)
        once = cpu_seconds(products(shapes, int(tokens), times=UPDATES))
        return [row["perf/cpu_s"] for row in rows], [once(turn) for turn in range(15)]

    found = in_turn({name: lambda turn, name=name: steps(name) for name in ("grpo_dapo", "tepo")}, 2, warm=0)
    ours = {name: median(one for cost, _ in rounds for one in cost) for name, rounds in found.items()}
    bare = {name: median(one for _, cost in rounds for one in cost) for name, rounds in found.items()}
    pairs = [(f"RL step / its bare matrix products, {name}", ours[name], bare[name], 2.5) for name in ours]
    pairs.append(("TEPO's RL step / GRPO/DAPO's", ours["tepo"], ours["grpo_dapo"], 1.10))
    return [BenchmarkRow(name, "CPU s", a, b, a / b, target, guarded=True) for name, a, b, target in pairs]


def objective_batch(name: str) -> tuple[Any, TokenBatch]:
    """An objective, and a mini-batch of one micro-batch of 100 responses with all that it reads."""
    objective, draw = load_objective(name), torch.Generator().manual_seed(0)
    lengths, length = torch.full((100,), 161), 161
    old, step, entropies = (torch.randn(len(lengths) * length, generator=draw) for _ in range(3))
    old, entropies = -old.abs() - 0.1, entropies.abs()
    rewards, groups = (torch.arange(len(lengths)) % 3 == 0).float(), torch.arange(len(lengths)) // 10
    advantages = objective.advantages(Groups(rewards, groups, lengths, entropies, rewards > 0, length))
    return objective, TokenBatch(
        old, advantages, lengths, logprobs=(old + 0.05 * step).requires_grad_(), entropies=entropies * 0.95,
        old_entropies=entropies, uid=torch.arange(len(lengths)), max_new_tokens=length,
    )  # fmt: skip


def objective(turns: int, short: bool) -> list[BenchmarkRow]:
    rows = []
    for name in OBJECTIVES:
        formula, batch = objective_batch(name)

        def ours(formula: Any = formula, batch: TokenBatch = batch) -> None:
            formula.loss(batch, formula.prepare(batch)).loss.backward()

        def by_hand(batch: TokenBatch = batch) -> None:
            assert batch.logprobs is not None
            ratio = (batch.logprobs - batch.old_logprobs).exp()
            gain = torch.minimum(ratio * batch.advantages, ratio.clamp(0.8, 1.28) * batch.advantages)
            (-gain.sum() / batch.tokens).backward()

        found = in_turn({"ours": cpu_seconds(ours), "by hand": cpu_seconds(by_hand)}, 20 * turns, warm=3)
        figures = ([1e3 * one for one in found[side]] for side in ("ours", "by hand"))
        rows.append(beside(f"loss of {name} / a clipped loss by hand", "CPU ms", *figures, None, guarded=True))
    return rows
