"""Tiny random models of the families the embedded sampler runs."""

from types import SimpleNamespace

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

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
FAMILIES = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 16}),
    "llama": (LlamaForCausalLM, LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": None, "num_key_value_heads": 1}),
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
