"""Small random models and groups for the tests of the packed path."""

import numpy as np
import torch
from transformers import PreTrainedModel

from tepo.policy.packing.packing import Tokens
from tests.unit.sampling.tiny import FAMILIES

VOCABULARY = 23
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


def plain_statistics(
    model: PreTrainedModel, groups: list[Group], temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
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
