"""Random models of known shapes in bfloat16, and rollouts of random tokens for them."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tepo.config.run_config import (
    DataConfig,
    EngineConfig,
    GraderConfig,
    ModelConfig,
    RunConfig,
    SamplerConfig,
    TrainConfig,
    WandbConfig,
)
from tepo.policy.model.packed_attention import prepare
from tepo.problems.problem import Problem
from tepo.sampling.sampler import Response
from tepo.training.rollout_batch import FlatRollout, Group, Prompt

PROMPT, GROUP = 256, 8
_QWEN = {"eos_token_id": 1, "bos_token_id": None, "max_position_embeddings": 40_960}


def _shape(width: int, inner: int, layers: int, heads: tuple[int, int], words: int, **more: Any) -> dict[str, Any]:
    return {
        **_QWEN,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "vocab_size": words,
        **more,
    }


SHAPES = {
    "small": ("qwen2", _shape(64, 128, 2, (4, 2), 512, tie_word_embeddings=True)),
    "short": ("qwen2", _shape(896, 4864, 4, (14, 2), 32_768, tie_word_embeddings=True)),
    "qwen2.5-0.5b": ("qwen2", _shape(896, 4864, 24, (14, 2), 151_936, tie_word_embeddings=True)),
    "qwen2.5-1.5b": ("qwen2", _shape(1536, 8960, 28, (12, 2), 151_936, tie_word_embeddings=True)),
    "qwen3-0.6b": ("qwen3", _shape(1024, 3072, 28, (16, 8), 151_936, tie_word_embeddings=True, head_dim=128)),
    "qwen2.5-7b, 4 layers": ("qwen2", _shape(3584, 18_944, 4, (28, 4), 152_064, tie_word_embeddings=False)),
}  # the last four as their authors publish them, but for the layers


@dataclass
class Case:
    """A job to train: `sequences` of up to `context` tokens in two updates, micro-batches of `micro` tokens.
    shortest: of mixed lengths; 0: all have the full one. optimizer, offload: of the engine."""

    shape: str
    context: int
    sequences: int
    micro: int
    checkpointing: bool
    shortest: int = 0
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    offload: bool = False


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
    rest = (data, SamplerConfig(), engine, train, GraderConfig(), WandbConfig())
    return RunConfig(0, "perf", {"name": "tepo"}, model, *rest)


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
