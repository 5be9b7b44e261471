"""The ids that end a response: the same for every sampler."""

from types import SimpleNamespace
from typing import Any

from transformers import AutoConfig, GenerationConfig

from tepo.policy.model.load_policy import load_tokenizer
from tepo.policy.model.model_location import load_options, resolve


def stop_tokens(model: Any, tokenizer: Any) -> list[int]:
    """End-of-sequence ids of the tokenizer and of the model's generation settings."""
    stop = {tokenizer.eos_token_id} - {None}
    declared = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return sorted(stop | set(declared if isinstance(declared, list) else [declared]) - {None})


def stop_tokens_of(path: str, revision: str | None = None, trust_remote_code: bool = False) -> list[int]:
    """The same of a folder, hub id or package:NAME, without loading the weights."""
    source = resolve(path)
    try:
        declared = GenerationConfig.from_pretrained(source, revision=revision or "main")
    except OSError:  # the model has none of its own
        config = AutoConfig.from_pretrained(source, **load_options(path, revision, trust_remote_code))
        declared = GenerationConfig.from_model_config(config)
    return stop_tokens(SimpleNamespace(generation_config=declared), load_tokenizer(path, revision, trust_remote_code))
