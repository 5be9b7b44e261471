"""Make word problems with a BPE tokenizer and a policy of 5.5M parameters that answers some of them:

python make.py FOLDER [--steps 1600]

    python examples/word_problems/make.py words
    export TEPO_PATH=words
    tepo eval word_problems --model words/base --wrap base
    tepo train scale=single_gpu objective=grpo_dapo model=words/base data=words/train.jsonl sampler=torch \
        train.steps=20 train.prompts_per_step=32 train.mini_batch_prompts=8 train.max_prompt_tokens=96 \
        train.max_new_tokens=48 train.learning_rate=5e-5 'data.benchmarks=[word_problems]' --evaluate

FOLDER gets train.jsonl, evals/word_problems.yaml with its problems, and base/. RL at scale=single_gpu then lifts the
policy on problems whose texts it has not seen: from 75.3% (± 3.0) of 400 to 98.1% (97.1 to 99.0), with one seed. What
costs the time is to learn that numbers are copied from the question. So most of the warm start is packed lines of short
questions and running sums. The rest is chains of thought after the prompt of the training, some with a slip: the policy
knows the way and often errs.
"""

import argparse
import json
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tepo.problems.prompt_format import render_prompt

NAMES = ("Ada", "Ben", "Carla", "David", "Emma", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kim", "Lena")
THINGS = ("apples", "books", "cards", "eggs", "marbles", "pencils", "stamps", "stickers", "tickets", "shells")
SLIP = 0.15  # probability that a result of a chain is wrong, and carried on with
PACKED = 0.65  # of the steps, on packed lines
WARM_UP, PEAK, BATCH, WIDTH = 100, 1.2e-3, 16, 128
END, PAD = "<|endoftext|>", "<|pad|>"

Problem = tuple[str, str, int]  # text, chain of thought that ends in a boxed answer, answer


class Chain:
    """Results in order, each perhaps wrong."""

    def __init__(self, random: Random, slip: float):
        self.random, self.slip, self.text = random, slip, ""

    def step(self, left: int, sign: str, right: int) -> int:
        """Write `left sign right = result` and give the result."""
        result = {"+": left + right, "-": left - right, "*": left * right}[sign]
        if self.random.random() < self.slip:
            result += self.random.choice((-2, -1, 1, 2))
        self.text += f"{left} {sign} {right} = {result}. "
        return result

    def boxed(self, answer: int) -> str:
        return f"{self.text}\\boxed{{{answer}}}"


def buys(random: Random, chain: Chain) -> tuple[str, int]:
    name, thing = random.choice(NAMES), random.choice(THINGS)
    has, more, given = random.randint(3, 12), random.randint(2, 9), random.randint(2, 9)
    given = min(given, has + more - 1)
    text = f"{name} has {has} {thing}, gets {more} more and gives {given} away. "
    return text + f"How many {thing} does {name} have now?", chain.step(chain.step(has, "+", more), "-", given)


def pays(random: Random, chain: Chain) -> tuple[str, int]:
    name, thing, price, count = random.choice(NAMES), random.choice(THINGS), random.randint(2, 5), random.randint(2, 5)
    money = price * count + random.randint(1, 9)
    text = f"{name} has {money} dollars and buys {count} {thing} at {price} dollars each. "
    return text + "How many dollars are left?", chain.step(money, "-", chain.step(count, "*", price))


def travels(random: Random, chain: Chain) -> tuple[str, int]:
    name, hours, speed, more = random.choice(NAMES), random.randint(2, 5), random.randint(2, 5), random.randint(2, 9)
    text = f"{name} cycles {hours} hours at {speed} miles an hour, then walks {more} miles. "
    return text + "How many miles is that in all?", chain.step(chain.step(hours, "*", speed), "+", more)


def draw(random: Random, slip: float = 0.0) -> Problem:
    """A problem of one of three kinds. The answer is right where there is no slip."""
    chain = Chain(random, slip)
    text, answer = random.choice((buys, pays, travels))(random, chain)
    return text, chain.boxed(answer), answer


def is_held_out(text: str) -> bool:
    """One text in ten, by its hash."""
    return zlib.crc32(text.encode()) % 10 == 0


def problems(random: Random, slip: float, held_out: bool = False) -> Iterator[Problem]:
    """Those of one side of the split without end."""
    while True:
        drawn = draw(random, slip)
        if is_held_out(drawn[0]) == held_out:
            yield drawn


def running_sums(random: Random) -> str:
    """Sums of which each begins with the result of the one before."""
    chain, total = Chain(random, 0.0), random.randint(2, 12)
    for _ in range(random.randint(2, 6)):
        if total <= 5 and random.random() < 0.5:
            total = chain.step(total, "*", random.randint(2, 5))
        elif total > 20 or (total > 10 and random.random() < 0.7):
            total = chain.step(total, "-", random.randint(2, 9))
        else:
            total = chain.step(total, "+", random.randint(2, 9))
    return chain.boxed(total)


def write_problems(path: Path, count: int, random: Random, held_out: bool) -> None:
    """Different ones, a line each."""
    rows: dict[str, int] = {}
    for text, _, answer in problems(random, 0.0, held_out):
        rows[text] = answer
        if len(rows) == count:
            break
    lines = [{"id": f"{path.stem}-{index}", "problem": text, "answer": rows[text]} for index, text in enumerate(rows)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_tokenizer(random: Random) -> PreTrainedTokenizerFast:
    """A byte-level BPE in which the numbers of the problems are tokens."""
    bpe = Tokenizer(models.BPE())
    numbers, text = pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([numbers, text])
    bpe.decoder = decoders.ByteLevel()
    source = problems(random, 0.0)
    lines = [" ".join(next(source)[:2]) for _ in range(4000)]
    lines += [render_prompt("", None, prompt="boxed", wrap="base")] * 400
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=[PAD, END], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(lines, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, pad_token=PAD, padding_side="left")


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Of Llama's kind: to a model of Qwen2's, AutoTokenizer gives Qwen2's splitting of numbers into digits."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=384,
        intermediate_size=1152,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=3,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def packed_lines(tokenizer: PreTrainedTokenizerFast, random: Random, source: Iterator[Problem]) -> torch.Tensor:
    """Ids [BATCH, WIDTH] of problems with their chains and of running sums, one after the other."""
    rows = []
    while len(rows) < BATCH:
        ids: list[int] = []
        while len(ids) < WIDTH:
            line = running_sums(random) if random.random() < 0.4 else " ".join(next(source)[:2])
            ids += [*tokenizer(line)["input_ids"], tokenizer.eos_token_id]
        rows.append(ids[:WIDTH])
    return torch.tensor(rows)


def responses(tokenizer: PreTrainedTokenizerFast, source: Iterator[Problem]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels [2 BATCH, T] of prompts and chains, padded on the right; labels where the chain stands."""
    drawn = [next(source) for _ in range(2 * BATCH)]
    asked = [render_prompt(text, None, prompt="boxed", wrap="base") for text, _, _ in drawn]
    prompts = tokenizer(asked)["input_ids"]
    chains = [[*ids, tokenizer.eos_token_id] for ids in tokenizer([chain for _, chain, _ in drawn])["input_ids"]]
    width = max(len(prompt) + len(chain) for prompt, chain in zip(prompts, chains, strict=True))
    ids, labels = torch.full((len(drawn), width), tokenizer.pad_token_id), torch.full((len(drawn), width), -100)
    for row, (prompt, chain) in enumerate(zip(prompts, chains, strict=True)):
        end = len(prompt) + len(chain)
        ids[row, :end] = torch.tensor(prompt + chain)
        labels[row, len(prompt) : end] = torch.tensor(chain)
    return ids, labels


def warm_start(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, random: Random, steps: int) -> None:
    """Supervised steps, the learning rate falling to zero."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    clean, slips = problems(random, 0.0), problems(random, SLIP)
    for step in range(steps):
        if step < PACKED * steps:
            ids = labels = packed_lines(tokenizer, random, clean)
        else:
            ids, labels = responses(tokenizer, slips)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = PEAK * min(1.0, (step + 1) / WARM_UP) * (1 - step / steps)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}, {time.process_time():.0f} CPU seconds", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1600, help="supervised steps")
    given = parser.parse_args()
    torch.set_num_threads(1)
    (given.folder / "evals").mkdir(parents=True, exist_ok=True)
    write_problems(given.folder / "train.jsonl", 4000, Random(1), held_out=False)
    write_problems(given.folder / "evals/word_problems.jsonl", 400, Random(2), held_out=True)
    (given.folder / "evals/word_problems.yaml").write_text(
        "title: held-out word problems\ndataset: {path: word_problems.jsonl}\ncount: 400\nprompt: boxed\n"
        "samples: 2\ntemperature: 1.0\nmax_new_tokens: 48\n"
    )
    tokenizer = make_tokenizer(Random(3))
    model = make_model(tokenizer)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    warm_start(model, tokenizer, Random(4), given.steps)
    model.save_pretrained(given.folder / "base")
    tokenizer.save_pretrained(given.folder / "base")
    print(f"{given.folder}/base")


if __name__ == "__main__":
    main()
