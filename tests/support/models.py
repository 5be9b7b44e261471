"""Tiny random models: of the families that the embedded sampler runs, for the packed path, for the real engines."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import transformers
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from tepo.policy.model.model_location import resolve
from tepo.policy.packing.packing import Tokens

EOS = 1
TOKENIZER = SimpleNamespace(eos_token_id=EOS)
_SHAPE = {
    "vocab_size": 29,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}
_ONE_HEAD = {"sliding_window": None, "num_key_value_heads": 1}
FAMILIES = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config, {"head_dim": 16}),
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "mistral": (transformers.MistralForCausalLM, transformers.MistralConfig, _ONE_HEAD),
}


def tiny_model(family: str = "qwen2", **changes):
    """A random model in evaluation mode, biases and norm weights random too."""
    model_class, config_class, extra = FAMILIES[family]
    torch.manual_seed(0)
    model = model_class(config_class(**(_SHAPE | extra | changes))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    return model


PROMPTS = [[5, 7, 9], [3], [11, 12, 13, 14, 15, 16, 17], [8, 2, 20]]
KEYS = [101, -7, 1 << 62, 0]

VOCABULARY = 23  # of the packed path
Group = tuple[Tokens, list[Tokens]]
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}


def make_model(family: str, dtype: torch.dtype = torch.float32, **changes: object) -> PreTrainedModel:
    """A random model of a family, two key-value heads unless changed."""
    model, config, _ = FAMILIES[family]
    torch.manual_seed(5)
    head = {"head_dim": 8} if family != "qwen2" else {}
    return model(config(**{**_SIZES, **head, "sliding_window": None, **changes})).to(dtype).eval()


def make_groups(seed: int = 0, groups: int = 3, longest: int = 12, prompt: int = 6) -> list[Group]:
    """Groups of unequal prompts, numbers of responses and lengths, among them responses of one token."""
    rng = np.random.default_rng(seed)

    def tokens(least: int, most: int) -> Tokens:
        return rng.integers(0, VOCABULARY, size=rng.integers(least, most + 1)).astype(np.int32)

    return [
        (tokens(1, prompt), [tokens(1, 1), *(tokens(1, longest) for _ in range(rng.integers(1, 5)))])
        for _ in range(groups)
    ]


def plain_statistics(model: PreTrainedModel, groups: list[Group], temperature=1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies of every response token, each sequence pushed through the plain model alone."""
    logprobs, entropies = [], []
    for prompt, responses in groups:
        for response in responses:
            ids = torch.tensor(np.concatenate([prompt, response]))[None]
            logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
            logp = torch.log_softmax(logits / temperature, dim=-1)
            logprobs.append(logp.gather(1, ids[0, len(prompt) :, None])[:, 0])
            entropies.append(-(logp.exp() * logp).sum(-1))
    return torch.cat(logprobs), torch.cat(entropies)


def gradients(model: PreTrainedModel, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """Gradients of all parameters, which are zeroed before and after."""
    model.zero_grad()
    loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    return found


def engine_model(seed: int, *, tied: bool) -> Qwen2ForCausalLM:
    """A random float32 Qwen2 of 0.3M parameters, sharp enough (2.9 nats) that a fault shows."""
    torch.manual_seed(seed)
    changes = {"vocab_size": 128, "hidden_size": 128, "intermediate_size": 256, "max_position_embeddings": 512}
    changes |= {"initializer_range": 0.1, "bos_token_id": 0, "tie_word_embeddings": tied}
    return Qwen2ForCausalLM(Qwen2Config(**(_SHAPE | changes))).eval()


def nearby(model: Qwen2ForCausalLM, seed: int, scale: float = 0.01) -> Qwen2ForCausalLM:
    """The model after a small random update, as a few optimiser steps would leave it."""
    other = engine_model(0, tied=model.config.tie_word_embeddings)
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
