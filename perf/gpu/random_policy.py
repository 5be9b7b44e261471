"""A policy of a true shape with random weights, its tokenizer, problems and a benchmark, made on the spot: a run of it
needs no network, and its groups are mixed.

The first 256 tokens are bytes, so any prompt can be read. Every other one is an answer from 0 to 7, so the last one of
a response is right once in eight times. One token in 400 ends a response. The last norm is scaled up: logits are then
as far apart as a trained model's, and so is what rounding does to them.
"""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from tepo.training.probes.models import SHAPES

_ANSWERS, _SHARPER, _ENDS = 8, 6.0, 400
_WIDER = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "max_position_embeddings": 512,
}  # heads that vLLM's CPU build has
_BENCHMARK = """\
title: Random
dataset: {path: random.jsonl}
count: 16
prompt: boxed
samples: 2
temperature: 1.0
max_new_tokens: NEW
"""


def make(folder: Path, shape: str, device: str) -> dict[str, str]:
    """Fill a folder: model/, train.jsonl and the benchmark `random`. Returns the overrides that name them."""
    kind, sizes = SHAPES[shape]
    sizes = sizes | (_WIDER if shape == "small" else {})
    words, ends = sizes["vocab_size"], 40 if shape == "small" else _ENDS
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes), dtype=torch.bfloat16)
    model.model.norm.weight.data *= _SHARPER
    model.generation_config.eos_token_id = [1, *range(300, words, ends)]
    model.save_pretrained(folder / "model")
    tokenizer(words).save_pretrained(folder / "model")
    (folder / "evals").mkdir()
    (folder / "evals/random.yaml").write_text(_BENCHMARK.replace("NEW", "24" if shape == "small" else "256"))
    for name, count in (("train.jsonl", 600), ("evals/random.jsonl", 16)):
        rows = [{"id": f"{i}", "problem": f"{name} {i}", "answer": str(i % _ANSWERS)} for i in range(count)]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"model": str(folder / "model"), "data": str(folder / "train.jsonl"), "data.benchmarks": "[random]"}


def tokenizer(words: int) -> PreTrainedTokenizerFast:
    """Bytes, a padding and an end, then answers."""
    names = ["<pad>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"{number}:\\boxed{{{number % _ANSWERS}}};" for number in range(len(names), words)]
    made = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")
