"""A sampler of a model outside of training, as an evaluation asks for it. Imports torch only to look for a GPU:
`tepo eval` of finished results needs neither."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tepo.config.schema import SamplerConfig
from tepo.errors import unknown_name
from tepo.sampling.samplers import SamplerBackend, sampler_backend, sampler_kinds

if TYPE_CHECKING:
    from tepo.sampling.sampler import Sampler


@dataclass(frozen=True)
class SamplerOptions:
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

    @property
    def gpus(self) -> int:
        """GPUs of all copies; on a CPU, processes."""
        return self.tensor_parallel * self.data_parallel

    @property
    def backend(self) -> SamplerBackend:
        """What generates. Raises UserError for an unknown kind."""
        return sampler_backend(self.resolved_kind())

    def resolved_kind(self) -> str:
        """The kind, `auto` replaced. Raises UserError for an unknown one."""
        kinds = sampler_kinds()
        if self.kind == "auto":
            return next((kind for kind in kinds if sampler_backend(kind).preferred()), SamplerConfig().kind)
        if self.kind not in kinds:
            raise unknown_name("backend", self.kind, ("auto", *kinds))
        return self.kind

    def resolved_dtype(self) -> str:
        """float32 or bfloat16."""
        return self.dtype if self.dtype != "auto" else "float32" if self.device() == "cpu" else "bfloat16"

    def device(self) -> str:
        """cuda or cpu."""
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"


def open_sampler(path: str, options: SamplerOptions, scratch: Path) -> AbstractContextManager["Sampler"]:
    """A sampler of the model at `path` (folder, hub id, package:NAME), closed at the end.
    `scratch`: a folder for server logs.

    Raises UserError for options that its backend does not have, or a model that does not load.
    """
    return options.backend.open_model(path, options, scratch)
