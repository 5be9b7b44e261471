"""Tiny random policies for the tests of the real engines."""

import shutil
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tepo.policy.model.model_location import resolve

EOS = 1


def tiny_model(seed: int, *, tied: bool) -> Qwen2ForCausalLM:
    """A random float32 Qwen2 of 0.3M parameters, sharp enough (2.9 nats) that a fault shows."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=128,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.1,
        bos_token_id=0,
        eos_token_id=EOS,
        pad_token_id=0,
    )
    return Qwen2ForCausalLM(config).eval()


def nearby(model: Qwen2ForCausalLM, seed: int, scale: float = 0.01) -> Qwen2ForCausalLM:
    """The model after a small random update, as a few optimiser steps would leave it."""
    other = tiny_model(0, tied=model.config.tie_word_embeddings)
    other.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator)
    return other


def save(model: Qwen2ForCausalLM, folder: Path) -> str:
    """With a tokenizer, which no folder of a model lacks and no test here asks."""
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(resolve("package:laptop")) / name, folder)
    return str(folder)


def prompts(count: int, length: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, 128, (count, length), generator=generator).tolist()


@torch.no_grad()
def logprobs(model: Qwen2ForCausalLM, prompt: list[int], response: list[int], temperature: float = 1.0) -> torch.Tensor:
    """The trainer's side, written out plainly: float32 [T]."""
    ids = torch.tensor([prompt + response])
    rows = model(ids).logits[0, len(prompt) - 1 : -1].float() / temperature
    return rows.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0]
