"""Sizes of the models that the papers train, from the configurations that their authors publish, so that a plan needs
no download."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tepo.common.errors import UserError
from tepo.policy.model.model_location import resolve


def number_bytes(dtype: str) -> int:
    """Bytes of a number in a model's type."""
    return 4 if dtype == "float32" else 2


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama-like model."""

    hidden: int  # its width
    inner: int  # width of the feed-forward
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool = False  # one matrix for input and output
    positions: int | None = None  # tokens that it attends to, None where unknown

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer; norms and biases left out (below 0.1%)."""
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads) + 3 * self.hidden * self.inner

    @property
    def head_parameters(self) -> int:
        """Weights of the output matrix."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All weights."""
        return self.layers * self.layer_parameters + self.head_parameters * (1 if self.tied else 2)

    def adapter_parameters(self, rank: int) -> int:
        """Weights of LoRA's adapters on all linear layers but the output matrix: rank times inputs and outputs of
        each."""
        attention = 2 * (2 * self.hidden + self.head_dim * (self.heads + self.kv_heads))
        return self.layers * rank * (attention + 3 * (self.hidden + self.inner))

    def forward_operations(self, tokens: float, pairs: float) -> float:
        """Operations of a forward pass over so many tokens. The input matrix is looked up, not multiplied. pairs: sum
        of squared lengths of the sequences; causal attention works on half of them, twice."""
        products = self.layers * self.layer_parameters + self.head_parameters
        return 2 * products * tokens + 2 * self.layers * self.heads * self.head_dim * pairs

    @property
    def cache_numbers(self) -> int:
        """Numbers of key-value cache per token."""
        return self.cut_cache_numbers(1)

    def cut_cache_numbers(self, parts: int) -> int:
        """The same on each of so many GPUs that share the heads. Where there are more of them than key-value heads,
        several hold the same one."""
        return 2 * self.layers * max(self.kv_heads // parts, 1) * self.head_dim

    @classmethod
    def of_config(cls, config: Any) -> "Shape":
        """From a transformers configuration."""
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        sizes = (
            config.hidden_size,
            config.intermediate_size,
            config.num_hidden_layers,
            config.num_attention_heads,
            config.num_key_value_heads,
        )
        positions = getattr(config, "max_position_embeddings", None)
        return cls(*sizes, head_dim, config.vocab_size, bool(config.tie_word_embeddings), positions)


_QWEN_7B = Shape(3584, 18_944, 28, 28, 4, 128, 152_064, positions=131_072)
_QWEN_1B = Shape(1536, 8960, 28, 12, 2, 128, 151_936, tied=True, positions=131_072)
_SMOL = "HuggingFaceTB/SmolLM2-135M-Instruct", *(f"cache:smollm2-135m{end}" for end in ("", "-words", "-wordings"))
KNOWN = {
    "Qwen/Qwen2.5-7B": _QWEN_7B,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": _QWEN_7B,
    "Qwen/Qwen3-14B": Shape(5120, 17_408, 40, 40, 8, 128, 151_936, positions=40_960),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": Shape(4096, 14_336, 32, 32, 8, 128, 128_256, positions=131_072),
    "mistralai/Mistral-7B-Instruct-v0.2": Shape(4096, 14_336, 32, 32, 8, 128, 32_000, positions=32_768),
    "Qwen/Qwen2.5-32B": Shape(5120, 27_648, 64, 40, 8, 128, 152_064, positions=131_072),
    "Qwen/Qwen2.5-0.5B": Shape(896, 4864, 24, 14, 2, 64, 151_936, tied=True, positions=32_768),
    "Qwen/Qwen2.5-1.5B": _QWEN_1B,
    "Qwen/Qwen2.5-Math-1.5B": replace(_QWEN_1B, positions=4096),
    "Qwen/Qwen3-0.6B-Base": Shape(1024, 3072, 28, 16, 8, 128, 151_936, tied=True, positions=32_768),
    "Qwen/Qwen3-1.7B-Base": Shape(2048, 6144, 28, 16, 8, 128, 151_936, tied=True, positions=32_768),
    "meta-llama/Llama-3.2-1B": Shape(2048, 8192, 16, 32, 8, 64, 128_256, tied=True, positions=131_072),
    **dict.fromkeys(_SMOL, Shape(576, 1536, 30, 9, 3, 64, 49_152, tied=True, positions=8192)),
    "HuggingFaceTB/SmolLM2-360M": Shape(960, 2560, 32, 15, 5, 64, 49_152, tied=True, positions=8192),
}


def check_length(path: str, length: int, positions: int | None) -> None:
    """Raise UserError when a model has fewer positions than a prompt and its response take."""
    if positions is not None and length > positions:
        what = f"the model has {positions:,} positions, prompts and responses take up to {length:,}"
        fix = "lower train.max_new_tokens or train.max_prompt_tokens (a benchmark: max_new_tokens in its file)"
        raise UserError(what, where=path, fix=fix)


def positions_of(path: str) -> int | None:
    """Tokens that a known model, or one in a folder, attends to; None where that is not known here."""
    if path in KNOWN:
        return KNOWN[path].positions
    try:
        positions = json.loads((Path(resolve(path)) / "config.json").read_bytes()).get("max_position_embeddings")
    except (UserError, OSError, ValueError, AttributeError):
        return None
    return positions if isinstance(positions, int) else None


def shape_of(path: str, revision: str | None = None) -> Shape:
    """The shape of a known model, or of one whose configuration is on this machine, a hub's at this revision. Raises
    UserError otherwise."""
    if path in KNOWN:
        return KNOWN[path]
    from transformers import AutoConfig

    try:
        # a plan executes no code that comes with a model, and asks no network
        options = {"revision": revision, "trust_remote_code": False, "local_files_only": True}
        return Shape.of_config(AutoConfig.from_pretrained(resolve(path), **options))
    except (OSError, ValueError, AttributeError) as error:
        fix = "download its config.json first, or plan with one of: " + ", ".join(KNOWN)
        raise UserError("the model's shape is not known here", where=path, fix=fix) from error
