"""Loading a causal language model and its tokenizer: a folder, a hub id, or `package:NAME` for a base that ships with tepo."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from tepo.errors import UserError, unknown_name
from tepo.paths import PACKAGE
from tepo.policy.allocator import keep_freed_memory
from tepo.policy.attention import prepare

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Policy:
    """A causal LM ready for packed training, in evaluation mode (no dropout), and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def resolve(path: str) -> str:
    """The folder or hub id behind `path`. Raises UserError for a folder that is not there or not whole."""
    if path.startswith("package:"):
        name = path.removeprefix("package:")
        folder = PACKAGE / "assets" / name
        if not name or not folder.is_dir():
            raise unknown_name("shipped model", name, (entry.name for entry in (PACKAGE / "assets").glob("*/")), where=path)
    else:
        folder = Path(path).expanduser()
        if not folder.exists() and not path.startswith((".", "/", "~")) and path.count("/") == 1:
            return path  # a hub id
    check_folder(folder)
    return str(folder)


def check_folder(folder: Path) -> None:
    """Raise UserError unless the folder holds a configuration, a tokenizer and every safetensors file its index names."""
    if not folder.is_dir():
        raise UserError("no model there", where=str(folder), fix="give a folder saved by a run or by save_pretrained, a hub id such as Qwen/Qwen2.5-7B, or package:laptop")
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()]
    index = folder / "model.safetensors.index.json"
    try:
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.is_file() else ["model.safetensors"]
    except (ValueError, KeyError):
        raise UserError("the index of the weight files is damaged", where=str(index), fix="download or save the model again") from None
    missing += [name for name in shards if not (folder / name).is_file()]
    if missing:
        raise UserError(f"half a model: {', '.join(missing)} missing", where=str(folder), fix="choose another checkpoint, or download or save this one again (safetensors)")


def load_policy(path: str, *, dtype: str = "float32", device: str = "cpu", revision: str | None = None, trust_remote_code: bool = False) -> Policy:
    """Load model and tokenizer; weights from safetensors only. On CPU the process keeps freed memory from then on (`allocator`). Raises UserError for anything missing, damaged or misspelt."""
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
        raise UserError(f"the model does not load: {reason}", where=path, fix="check the path, the network or HF_HOME, and that the files are whole") from error
    prepare(model)
    if torch.device(device).type == "cpu":
        keep_freed_memory()
    return Policy(torch.nn.Module.to(model, torch.device(device)).eval(), tokenizer)
