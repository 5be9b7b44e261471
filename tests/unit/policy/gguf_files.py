"""GGUF files of the laptop's base, whole and damaged."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from safetensors.torch import load_file

from tepo.policy.model.model_location import resolve
from tepo.policy.warmstart import VOCABULARY

Arrays = dict[str, np.ndarray]
_SPELT = {  # parts of names, by those of transformers
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.layers": "blk",
    "self_attn.o_proj": "attn_output",
    "self_attn.": "attn_",
    "mlp.": "ffn_",
    "_proj": "",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_gguf(
    file: Path, edit: Callable[[Arrays], Arrays] = dict, *, blocks: int = 2, tokens: bool = True, kind: str = "qwen2"
) -> Path:
    """The base as a file. edit: changes its tensors. blocks: that its metadata name. tokens: with a tokenizer."""
    folder, arrays = Path(resolve("package:laptop")), Arrays()
    for name, value in load_file(folder / "model.safetensors").items():
        for theirs, ours in _SPELT.items():
            name = name.replace(theirs, ours)
        arrays[name] = value.numpy()
    writer, config = GGUFWriter(str(file), kind), json.loads((folder / "config.json").read_bytes())
    writer.add_name("laptop")
    writer.add_block_count(blocks)
    for add, key in (
        (writer.add_context_length, "max_position_embeddings"),
        (writer.add_embedding_length, "hidden_size"),
        (writer.add_feed_forward_length, "intermediate_size"),
        (writer.add_head_count, "num_attention_heads"),
        (writer.add_head_count_kv, "num_key_value_heads"),
        (writer.add_layer_norm_rms_eps, "rms_norm_eps"),
        (writer.add_vocab_size, "vocab_size"),
    ):
        add(config[key])
    if tokens:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_list([*VOCABULARY[:-1], "mo"])  # a merge must give a token
        writer.add_token_merges(["m o"])
        writer.add_eos_token_id(config["eos_token_id"])
    for name, array in edit(arrays).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
