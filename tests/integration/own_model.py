"""A tiny Hugging Face model that a user brings along:
Llama's architecture, a tokenizer trained on the spot, a little supervised training."""

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tepo.problems.prompt_format import render_prompt


def make_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE of 400 tokens: it reads any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=400, special_tokens=["<pad>", "<eos>"], initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def save_tiny(folder: Path, statements: Sequence[str], answers: Sequence[str], steps: int = 60) -> None:
    """Save a model of 0.1M parameters that boxes one of the answers, whatever it is asked."""
    torch.manual_seed(0)
    boxed = [f"\\boxed{{{answer}}}" for answer in sorted(set(answers))]
    tokenizer = make_tokenizer([render_prompt(statement, None, prompt="boxed") for statement in statements] + boxed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        statement = render_prompt(statements[step % len(statements)], tokenizer, prompt="boxed")
        prompt = tokenizer(statement)["input_ids"]
        responses = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in boxed]
        length = max(map(len, responses))
        rows = torch.tensor([prompt + ids + [tokenizer.pad_token_id] * (length - len(ids)) for ids in responses])
        labels = rows.masked_fill(rows == tokenizer.pad_token_id, -100)
        labels[:, : len(prompt)] = -100
        model(rows, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
