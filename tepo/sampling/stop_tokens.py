"""The ids with which a model ends a response: the same for every sampler."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import GenerationConfig

from tepo.common.errors import UserError
from tepo.policy.model.load_policy import load_tokenizer
from tepo.policy.model.model_location import load_config, pinned, resolve

_SETTINGS = "generation_config.json"


def stop_tokens(model: Any, tokenizer: Any) -> list[int]:
    """End-of-sequence ids of the tokenizer and of the model's generation settings, where it has some else of its
    configuration; what ends a turn of a chat template comes with the prompts (`AskedPrompts.stop`).

    Raises UserError for a value that is no row of the vocabulary."""
    source, rows = str(model.config._name_or_path) or "the model", model.config.get_text_config().vocab_size
    declared, tokenizer_eos = getattr(model.generation_config, "eos_token_id", None), tokenizer.eos_token_id
    listed = declared if isinstance(declared, list) else [] if declared is None else [declared]
    named = [(value, _settings_file(source)) for value in listed]
    if tokenizer_eos is not None:
        named.append((tokenizer_eos, "tokenizer_config.json"))
    for value, file in named:
        if type(value) is not int or not 0 <= value < rows:
            what = f"eos_token_id is {repr(value)[:80]}, which is no row of the vocabulary (0 to {rows - 1:,})"
            fix = "the id, or the list of ids, with which the model ends a text"
            raise UserError(what, where=f"{source}/{file}", fix=fix)
    if not named:
        message = "neither its tokenizer nor its generation settings name a token that ends a response: all are cut off"
        logging.getLogger(__name__).warning("%s: %s", source, message)
    return sorted({value for value, _ in named})


def stop_tokens_of(path: str, revision: str | None = None, trust_remote_code: bool = False) -> list[int]:
    """The same of a folder, hub id or package:NAME, without loading the weights."""
    source = resolve(path)
    config = load_config(path, revision, trust_remote_code)
    try:
        declared = GenerationConfig.from_pretrained(source, revision=pinned(path, revision) or "main")
    except OSError:  # the model has none of its own
        declared = GenerationConfig.from_model_config(config)
    model = SimpleNamespace(generation_config=declared, config=config)
    return stop_tokens(model, load_tokenizer(path, revision, trust_remote_code))


def _settings_file(source: str) -> str:
    """The file that declares a model's stop tokens."""
    folder = Path(source)
    return "config.json" if folder.is_dir() and not (folder / _SETTINGS).is_file() else _SETTINGS
