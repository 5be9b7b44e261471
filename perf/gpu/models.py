"""Random models of known shapes in bfloat16, rollouts of random tokens for them, and runs that need no network."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from tepo.config.run_config import (
    DataConfig,
    EngineConfig,
    GraderConfig,
    ModelConfig,
    RunConfig,
    SamplerConfig,
    TrackingConfig,
    TrainConfig,
)
from tepo.formula.row import load_row
from tepo.policy.model.model_location import resolve
from tepo.policy.model.packed_attention import prepare
from tepo.policy.model.shapes import Shape
from tepo.problems.problem import Problem
from tepo.sampling.sampler import Response
from tepo.training.resources.layout import fill
from tepo.training.resources.memory import Gpus, Memory, memory
from tepo.training.rollout_batch import FlatRollout, Group, Prompt
from tepo.training.run import Run

PROMPT, GROUP = 256, 8
_COLUMNS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")


def _shape(kind: str, *sizes: int, words: int, tied: bool = True, **more: int) -> tuple[str, dict[str, Any]]:
    known = {"eos_token_id": 1, "bos_token_id": None, "max_position_embeddings": 40_960}
    known |= dict(zip(_COLUMNS, sizes, strict=True))
    return kind, known | {"vocab_size": words, "tie_word_embeddings": tied, **more}


SHAPES = {
    "small": _shape("qwen2", 64, 128, 2, 4, 2, words=512),
    "qwen2.5-0.5b": _shape("qwen2", 896, 4864, 24, 14, 2, words=151_936),
    "qwen2.5-1.5b": _shape("qwen2", 1536, 8960, 28, 12, 2, words=151_936),
    "qwen3-0.6b": _shape("qwen3", 1024, 3072, 28, 16, 8, words=151_936, head_dim=128),
    "qwen2.5-7b, 4 layers": _shape("qwen2", 3584, 18_944, 4, 28, 4, words=152_064, tied=False),
}  # the last four as their authors publish them, but for the layers


@dataclass
class Case:
    """A job to train: `sequences` in two updates."""

    shape: str
    context: int  # tokens of the longest sequence
    sequences: int
    micro: int  # tokens of a micro-batch
    checkpointing: bool
    shortest: int = 0  # response, where lengths are mixed; 0: all have the full one
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    offload: bool = False
    kernels: Sequence[Literal["flash4", "layers"]] = ()


def model_of(shape: str, device: str, dtype: torch.dtype = torch.bfloat16) -> Any:
    """A random model of a shape."""
    kind, values = SHAPES[shape]
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **values), dtype=dtype)
    prepare(model)
    return model.eval()


def run_config(case: Case) -> RunConfig:
    """The configuration a run of this case would have."""
    groups = case.sequences // GROUP
    new = case.context - PROMPT
    train = TrainConfig(1, groups, GROUP, 1, 1.0, PROMPT, new, max(groups // 2, 1), 1, 1e-6)
    model = ModelConfig(case.shape, "none", dtype="bfloat16", gradient_checkpointing=case.checkpointing)
    data = DataConfig("random", "none")
    engine = EngineConfig(micro_batch_tokens=case.micro, optimizer=case.optimizer, offload=case.offload)
    rest = (data, SamplerConfig(), engine, train, GraderConfig(), TrackingConfig())
    return RunConfig(0, "perf", load_row("tepo").formula.mapping, model, *rest)


def rollout_of(case: Case, vocabulary: int, device: str) -> FlatRollout:
    """Random groups of 8, half of them right."""
    draw = np.random.default_rng(0)
    longest = case.context - PROMPT
    groups = []
    for number in range(case.sequences // GROUP):
        prompt = Prompt(number, Problem(str(number), "", ""), draw.integers(2, vocabulary - 400, PROMPT).tolist())
        lengths = draw.integers(case.shortest or longest, longest + 1, GROUP)
        responses = []
        for length in lengths:
            flat = np.full(length, -np.log(vocabulary), np.float32)
            tokens = draw.integers(2, vocabulary - 400, length).astype(np.int32)
            responses.append(Response(tokens, flat, -flat, False))
        groups.append(Group(prompt, responses, np.array([1, 0] * (GROUP // 2), np.float32)))
    return FlatRollout(groups, torch.device(device))


def planned(words: list[str], size: float = Gpus().bytes) -> Memory:
    """The memory of a run by `tepo plan`. size: bytes of the GPU."""
    from tepo_cli.cli_options import compose_run

    config, gpus = compose_run(words, None), Gpus(bytes=size)
    shape = Shape.of_config(AutoConfig.from_pretrained(resolve(config.model.path)))
    return memory(fill(Run(config, sizes=shape), gpus)[0], gpus)


# a policy that `tepo train` can load -------------------------------------------------------------------------------

# The first 256 tokens are bytes, so any prompt can be read. Every other one is an answer from 0 to 7, so the last one
# of a response is right once in eight times, and groups are mixed. One token in 400 ends a response. The last norm is
# scaled up: logits are then as far apart as a trained model's, and so is what rounding does to them.
_ANSWERS, _SHARPER, _ENDS = 8, 6.0, 400
_WIDER = {"hidden_size": 128, "intermediate_size": 256, "max_position_embeddings": 512}  # heads of vLLM's CPU build
_BENCHMARK = """\
title: Random
dataset: {path: random.jsonl}
count: 16
prompt: boxed
samples: 2
temperature: 1.0
max_new_tokens: NEW
"""


def make_policy(folder: Path, shape: str, device: str) -> dict[str, str]:
    """Fill a folder: model/, train.jsonl and the benchmark `random`. Returns the overrides that name them."""
    small, (kind, sizes) = shape == "small", SHAPES[shape]
    sizes = sizes | (_WIDER if small else {})
    words = sizes["vocab_size"]
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes), dtype=torch.bfloat16)
    model.model.norm.weight.data *= _SHARPER
    model.generation_config.eos_token_id = [1, *range(300, words, 40 if small else _ENDS)]
    model.save_pretrained(folder / "model")
    tokenizer(words).save_pretrained(folder / "model")
    (folder / "evals").mkdir()
    (folder / "evals/random.yaml").write_text(_BENCHMARK.replace("NEW", "24" if small else "256"))
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
