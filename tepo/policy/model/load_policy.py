"""Loading a causal language model and its tokenizer:
a folder, a hub id, or `package:NAME` for a base that ships with tepo."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from tepo.common.errors import UserError, unknown_name
from tepo.policy.model.allocator import keep_freed_memory, limit_kernel_caches
from tepo.policy.model.model_location import load_options, no_vocabulary, not_loaded, resolve
from tepo.policy.model.packed_attention import prepare
from tepo.policy.model.weight_check import check_weights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Policy:
    """A causal LM ready for packed training, in evaluation mode (no dropout), and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load_policy(
    path: str,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Policy:
    """Load model and tokenizer; weights from safetensors only. On CPU the process keeps freed memory and
    few kernels from then on (`allocator`). Raises UserError for anything missing, damaged or misspelt."""
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    source = resolve(path)
    options = check_weights(path, revision, trust_remote_code)
    tokenizer = load_tokenizer(path, revision, trust_remote_code)
    try:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=DTYPES[dtype], use_safetensors=True, **options)
    except Exception as error:  # transformers and safetensors raise many kinds here, from OSError to their own
        raise not_loaded("the model does not load", error, path) from error
    prepare(model)
    if torch.device(device).type == "cpu":
        keep_freed_memory()
        limit_kernel_caches()
    return Policy(torch.nn.Module.to(model, torch.device(device)).eval(), tokenizer)


def load_tokenizer(path: str, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a model. Raises UserError when it is not there, or not all of it."""
    source = resolve(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **load_options(path, revision, trust_remote_code))
    except UserError:
        raise
    except Exception as error:  # transformers raises many kinds
        raise not_loaded("no tokenizer", error, path) from error
    if tokenizer.vocab_size <= len(tokenizer.all_special_tokens):
        raise no_vocabulary(path)
    return tokenizer
