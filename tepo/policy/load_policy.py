"""Loading a causal language model and its tokenizer:
a folder, a hub id, or `package:NAME` for a base that ships with tepo."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from tepo.errors import UserError, unknown_name
from tepo.policy.allocator import keep_freed_memory
from tepo.policy.attention import prepare
from tepo.policy.location import resolve

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
    """Load model and tokenizer; weights from safetensors only. On CPU the process keeps freed memory from then on
    (`allocator`). Raises UserError for anything missing, damaged or misspelt."""
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    source = resolve(path)
    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    logging.disable_progress_bar()  # one bar a process: ours
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=DTYPES[dtype], use_safetensors=True, **options)
    except Exception as error:  # transformers and safetensors raise many kinds here, from OSError to their own
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"the model does not load: {reason}",
            where=path,
            fix="check the path, the network or HF_HOME, and that the files are whole",
        ) from error
    prepare(model)
    if torch.device(device).type == "cpu":
        keep_freed_memory()
    return Policy(torch.nn.Module.to(model, torch.device(device)).eval(), tokenizer)


def load_tokenizer(path: str, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a model. Raises UserError when it is not there."""
    source = resolve(path)
    try:
        return AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=trust_remote_code)
    except Exception as error:  # transformers raises many kinds
        raise UserError(
            f"no tokenizer: {(str(error).splitlines() or [type(error).__name__])[0]}",
            where=path,
            fix="check the path, the network or HF_HOME",
        ) from error
