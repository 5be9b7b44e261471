"""Make word problems with a BPE tokenizer and a policy of 5M parameters that answers some of them:

python make.py FOLDER [--minutes 8]

FOLDER gets train.jsonl, evals/word_problems.yaml with its problems, and base/. RL at scale=single_gpu then lifts the
policy on problems whose texts it has not seen (docs/single-gpu.md). The policy learns from chains of thought of which
some hold a slip, so that it knows the way and often errs.
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
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from tepo.problems.prompt_format import encode_prompts, render_prompt

NAMES = ("Ada", "Ben", "Carla", "David", "Emma", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kim", "Lena")
THINGS = ("apples", "books", "cards", "eggs", "marbles", "pencils", "stamps", "stickers", "tickets", "shells")
SLIP = 0.15  # probability that a result of a chain is wrong, and carried on with
END, PAD = "<|endoftext|>", "<|pad|>"
WARM_UP, PEAK, BATCH = 50, 1.5e-3, 64


class Chain:
    """Results in order, each perhaps wrong."""

    def __init__(self, random: Random, slip: float):
        self.random, self.slip, self.text = random, slip, ""

    def step(self, left: int, sign: str, right: int) -> int:
        """Write `left sign right = result` and give the result."""
        result = {"+": left + right, "-": left - right, "*": left * right}[sign]
        if self.random.random() < self.slip:
            result += self.random.choice((-10, -2, -1, 1, 2, 10))
        self.text += f"{left} {sign} {right} = {result}. "
        return result


def buys(random: Random, chain: Chain) -> tuple[str, int]:
    name, thing = random.choice(NAMES), random.choice(THINGS)
    has, bags, each, given = random.randint(5, 60), random.randint(2, 9), random.randint(2, 9), random.randint(2, 5)
    text = f"{name} has {has} {thing}, gets {bags} bags with {each} {thing} in each and gives {given} away. "
    total = chain.step(has, "+", chain.step(bags, "*", each))
    return text + f"How many {thing} does {name} have now?", chain.step(total, "-", given)


def pays(random: Random, chain: Chain) -> tuple[str, int]:
    name, thing, price, count = random.choice(NAMES), random.choice(THINGS), random.randint(2, 9), random.randint(2, 9)
    money = price * count + random.randint(1, 40)
    text = f"{name} has {money} dollars and buys {count} {thing} at {price} dollars each. "
    return text + "How many dollars are left?", chain.step(money, "-", chain.step(price, "*", count))


def travels(random: Random, chain: Chain) -> tuple[str, int]:
    name = random.choice(NAMES)
    fast, hours, slow, more = random.randint(3, 9), random.randint(2, 9), random.randint(3, 9), random.randint(2, 9)
    text = f"{name} cycles {hours} hours at {fast} miles an hour and walks {more} hours at {slow} miles an hour. "
    first = chain.step(hours, "*", fast)
    return text + "How many miles is that in all?", chain.step(first, "+", chain.step(more, "*", slow))


def seats(random: Random, chain: Chain) -> tuple[str, int]:
    rows, each = random.randint(3, 9), random.randint(4, 9)
    taken, left = random.randint(2, rows * each - 2), random.randint(1, 20)
    text = f"A hall has {rows} rows of {each} seats. {taken} people come, then {left} chairs are added. "
    free = chain.step(chain.step(rows, "*", each), "-", taken)
    return text + "How many seats are free?", chain.step(free, "+", left)


KINDS = (buys, pays, travels, seats)


def draw(random: Random, slip: float = 0.0) -> tuple[str, str, int]:
    """A problem, a chain of thought that ends in a boxed answer, and that answer."""
    chain = Chain(random, slip)
    text, answer = random.choice(KINDS)(random, chain)
    return text, f"{chain.text}\\boxed{{{answer}}}", answer


def is_held_out(text: str) -> bool:
    """One text in ten, by its hash."""
    return zlib.crc32(text.encode()) % 10 == 0


def texts(random: Random, slip: float, held_out: bool = False) -> Iterator[tuple[str, str, int]]:
    """Problems of one side of the split without end."""
    while True:
        drawn = draw(random, slip)
        if is_held_out(drawn[0]) == held_out:
            yield drawn


def write_problems(path: Path, count: int, random: Random, held_out: bool) -> None:
    rows: dict[str, int] = {}
    for text, _, answer in texts(random, 0.0, held_out):
        rows[text] = answer
        if len(rows) == count:
            break
    lines = [{"id": f"{path.stem}-{index}", "problem": text, "answer": rows[text]} for index, text in enumerate(rows)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def tokenizer_of(random: Random) -> PreTrainedTokenizerFast:
    """A byte-level BPE of 600 tokens, digits by themselves as Qwen's."""
    bpe = Tokenizer(models.BPE())
    digits, text = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, text])
    bpe.decoder = decoders.ByteLevel()
    source = texts(random, 0.0)
    lines = [" ".join(next(source)[:2]) for _ in range(4000)]
    lines += [render_prompt("", None, prompt="boxed", wrap="base")] * 400
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        lines, trainers.BpeTrainer(vocab_size=600, special_tokens=[PAD, END], initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, pad_token=PAD, padding_side="left")


def model_of(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=832,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def batch(tokenizer: PreTrainedTokenizerFast, source: Iterator[tuple[str, str, int]]) -> tuple[torch.Tensor, ...]:
    """Ids and labels [BATCH, T], padded on the right; labels where the response stands."""
    drawn = [next(source) for _ in range(BATCH)]
    prompts = encode_prompts([text for text, _, _ in drawn], tokenizer, prompt="boxed", wrap="base")
    responses = [[*ids, tokenizer.eos_token_id] for ids in tokenizer([chain for _, chain, _ in drawn])["input_ids"]]
    width = max(len(prompt) + len(response) for prompt, response in zip(prompts, responses, strict=True))
    ids, labels = torch.full((BATCH, width), tokenizer.pad_token_id), torch.full((BATCH, width), -100)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        end = len(prompt) + len(response)
        ids[row, :end] = torch.tensor(prompt + response)
        labels[row, len(prompt) : end] = torch.tensor(response)
    return ids, labels


def warm_start(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, random: Random, seconds: float) -> int:
    """Supervised steps for so many CPU seconds, the learning rate falling to zero. Returns their number."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    source, start, step = texts(random, SLIP), time.process_time(), 0
    while (left := 1 - (time.process_time() - start) / seconds) > 0:
        ids, labels = batch(tokenizer, source)
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = PEAK * min(1.0, (step + 1) / WARM_UP) * left
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {seconds * left:.0f} CPU seconds left", flush=True)
    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=8.0, help="CPU minutes of the warm start")
    given = parser.parse_args()
    (given.folder / "evals").mkdir(parents=True, exist_ok=True)
    write_problems(given.folder / "train.jsonl", 4000, Random(1), held_out=False)
    write_problems(given.folder / "evals/word_problems.jsonl", 400, Random(2), held_out=True)
    (given.folder / "evals/word_problems.yaml").write_text(
        "title: held-out word problems\ndataset: {path: word_problems.jsonl}\ncount: 400\nprompt: boxed\n"
        "samples: 2\ntemperature: 1.0\nmax_new_tokens: 96\n"
    )
    tokenizer = tokenizer_of(Random(3))
    model = model_of(tokenizer)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    steps = warm_start(model, tokenizer, Random(4), 60 * given.minutes)
    model.save_pretrained(given.folder / "base")
    tokenizer.save_pretrained(given.folder / "base")
    print(f"{given.folder}/base: {steps} steps")


if __name__ == "__main__":
    main()
