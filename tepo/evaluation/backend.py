"""The choice of what generates in an evaluation. Imports torch only to look for a GPU:
`tepo eval` of finished results needs neither."""

import importlib.util
from dataclasses import dataclass

from tepo.errors import unknown_name

BACKENDS = ("auto", "torch", "vllm")


@dataclass(frozen=True)
class Backend:
    """How to generate.

    kind: `auto` takes vLLM where it is installed with a GPU, else the embedded sampler. dtype: `auto` is bfloat16 on a
    GPU, else float32. tensor_parallel: GPUs a copy of the model is cut over; data_parallel: copies side by side.
    memory: share of a GPU that vLLM may take, or GiB of cache on a CPU.
    max_length: longest prompt plus response, in tokens.
    """

    kind: str = "auto"
    dtype: str = "auto"
    tensor_parallel: int = 1
    data_parallel: int = 1
    memory: float = 0.85
    max_length: int = 10240
    revision: str | None = None
    trust_remote_code: bool = False

    def resolved_kind(self) -> str:
        """torch or vllm. Raises UserError for an unknown kind."""
        if self.kind not in BACKENDS:
            raise unknown_name("backend", self.kind, BACKENDS)
        if self.kind != "auto":
            return self.kind
        return "vllm" if importlib.util.find_spec("vllm") and _gpu() else "torch"

    def resolved_dtype(self) -> str:
        """float32 or bfloat16."""
        return self.dtype if self.dtype != "auto" else "bfloat16" if _gpu() else "float32"


def _gpu() -> bool:
    import torch

    return torch.cuda.is_available()
