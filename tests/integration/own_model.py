"""Tiny Hugging Face models that a user brings along, with a tokenizer trained on the spot and a little training."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tepo.problems.prompt_format import render_prompt
from tests.support.models import tiny_model

TURN = ("<|im_start|>", "<|im_end|>")
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# What a real small model of the family has: biases on q, k and v; norms on q and k; rope stretched as Llama 3.2's.
_ROPE = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0, "original_max_position_embeddings": 64}
_ROPE |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "llama": {"attention_bias": False, "mlp_bias": False, "rope_parameters": _ROPE},
}
_PEOPLE, _THINGS = ("Ann", "Ben", "Cleo", "Dan"), ("apples", "pens", "eggs", "coins", "cards")
_SPACE = 256  # positions of a family's model: a prompt takes below 100


def make_tokenizer(texts: Sequence[str], *, chat: bool = False) -> PreTrainedTokenizerFast:
    """A byte-level BPE of 400 tokens: it reads any text. chat: with the tokens of a turn and a template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", "<eos>", *(TURN if chat else ())]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    if chat:
        made.chat_template = CHAT
    return made


def word_problems(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Rows of a problem file: two-step word problems as in GSM8K, with one of four answers, so that a guess is right
    now and then."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        answer, bags = draw.randint(3, 6), draw.randint(2, 4)
        each = draw.choice([size for size in range(2, 6) if bags * size != answer])
        who, what, lost = draw.choice(_PEOPLE), draw.choice(_THINGS), bags * each - answer
        change = f"gives {lost} away" if lost > 0 else f"finds {-lost} more"
        statement = f"{who} has {bags} bags of {each} {what} and {change}. How many {what} has {who} now?"
        rows.append({"id": f"word-{number}", "problem": statement, "answer": str(answer)})
    return rows


def write_words(path: Path, seed: int = 0) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in word_problems(40, seed)))


def save_family(folder: Path, family: str, *, tied: bool = True, chat: bool = False) -> None:
    """Save a model of a family that boxes an answer of `word_problems`, whatever it is asked."""
    rows = word_problems(40)
    statements, boxed = [row["problem"] for row in rows], [f"\\boxed{{{answer}}}" for answer in range(3, 7)]
    asked = [render_prompt(statement, None, prompt="boxed", wrap="base") for statement in statements]
    tokenizer = make_tokenizer(asked + boxed, chat=chat)
    changes = FAMILIES[family] | {"num_key_value_heads": 1, "max_position_embeddings": _SPACE}
    save_taught(folder, tokenizer, statements, boxed, family=family, tie_word_embeddings=tied, **changes)


def save_tiny(folder: Path, statements: Sequence[str], answers: Sequence[str]) -> None:
    """Save a model of 0.1M parameters that boxes one of the answers, whatever it is asked."""
    boxed = [f"\\boxed{{{answer}}}" for answer in sorted(set(answers))]
    tokenizer = make_tokenizer([render_prompt(statement, None, prompt="boxed") for statement in statements] + boxed)
    save_taught(folder, tokenizer, statements, boxed, max_position_embeddings=512)


def save_taught(folder: Path, tokenizer: Any, statements: Sequence[str], texts: Sequence[str], **changes: Any) -> None:
    """changes: of the configuration; `family`, qwen2 unless it is given."""
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = tiny_model(**(sizes | ends | {"initializer_range": 0.05} | changes))
    teach(model, tokenizer, statements, texts, 60)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def teach(model: Any, tokenizer: Any, statements: Sequence[str], texts: Sequence[str], steps: int) -> None:
    """Supervised steps towards each of the texts alike, after each statement as it is asked."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        statement = render_prompt(statements[step % len(statements)], tokenizer, prompt="boxed")
        prompt = tokenizer(statement)["input_ids"]
        responses = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts]
        length = max(map(len, responses))
        rows = torch.tensor([prompt + ids + [tokenizer.pad_token_id] * (length - len(ids)) for ids in responses])
        labels = rows.masked_fill(rows == tokenizer.pad_token_id, -100)
        labels[:, : len(prompt)] = -100
        model(rows, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
