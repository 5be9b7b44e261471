"""The samplers by name: `sampler.kind=NAME` is the module NAME of this folder.

The planner reads these files, so they import torch and the like inside functions. To add a sampler: its file here, and
`tepo/config/sampler/NAME.yaml`.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tepo.common import registry
from tepo.common.errors import unknown_name
from tepo.common.gpu_driver import check_driver
from tepo.config.run_config import RunConfig
from tepo.policy.model.shapes import Shape

if TYPE_CHECKING:
    from tepo.policy.model.load_policy import Policy
    from tepo.sampling.sampler import Sampler


RESERVE = 2**30  # bytes of a GPU that no plan gives away: a desktop, other contexts, what the plan misses


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of the GPU that a sampler shares, in bytes."""

    device: float  # 0 for a CPU
    trainer: float  # what the trainer holds during a rollout
    shared: bool  # whether the sampler reads the trainer's weights


@dataclass(frozen=True, slots=True)
class SamplerMemory:
    """Bytes of a GPU while responses are drawn."""

    total: float
    cache: float | None  # of these for keys and values; None where they lie on GPUs of the sampler's own
    asleep: float = 0.0  # what it does not give back between rollouts


class SamplerBackend(Protocol):
    """Declaration of a sampler. The kinds inherit what they do not say otherwise."""

    shares_weights: bool = False
    """It reads the weights of the policy that it was opened with, as they are at each call."""
    remote: bool = False
    """It runs outside of the run and outlives it: it starts with the weights of another, and one rank syncs for all."""
    full_rows: bool = False
    """A row of its cache keeps room for the longest prompt and response from the start."""
    part_rows: int = 1024
    """Rows of an evaluation that are stored at once, and decoded together where it decodes what is added by itself."""
    packages: Mapping[str, str] = {}
    """Distributions, of which it needs one, and how to get each."""

    def segments_may_grow(self, config: RunConfig) -> bool:
        """Tell whether torch's allocator may use expandable segments in its process."""
        return True

    def check_settings(self, config: RunConfig, ranks: int) -> None:
        """Raises UserError for settings, or ranks, that it cannot work with. Looks at nothing but them."""
        ...

    def check_available(self, config: RunConfig) -> None:
        """Raises UserError when what it runs on is missing: packages, servers."""
        return

    def open(self, config: RunConfig, policy: "Policy", source: str, exchange: Path) -> "Sampler":
        """The sampler of a training run, holding the policy's weights. source: the folder or hub id they were loaded
        from. exchange: a folder that sampling servers see too."""
        ...

    def open_model(self, path: str, options: "SamplerOptions", scratch: Path) -> AbstractContextManager["Sampler"]:
        """A sampler of a model (folder, hub id, package:NAME) for an evaluation. scratch: a folder for logs. Raises
        UserError for options that it does not have, or a model that does not load."""
        ...

    def memory(self, config: RunConfig, shape: Shape, room: Room) -> SamplerMemory:
        """Memory that it takes, from the sizes of the model."""
        ...

    def remedies(self, config: RunConfig) -> Sequence[str]:
        """Overrides that change what it takes, one or several with spaces between; the first to be tried first."""
        return ()


def sampler_kinds() -> list[str]:
    """Values of `sampler.kind`."""
    return registry.kinds(__name__)


def sampler_backend(kind: str) -> SamplerBackend:
    """The declaration of a sampler. Raises UserError for an unknown one."""
    return registry.backend(__name__, kind, "sampler")


def longest_sequence(config: RunConfig) -> int:
    """Tokens of the longest prompt and response together."""
    return config.train.max_prompt_tokens + config.train.max_new_tokens


@dataclass(frozen=True)
class SamplerOptions:
    """Settings of a sampler for a finished model."""

    kind: str = "auto"  # takes vLLM where it is installed with a GPU, else the embedded sampler
    dtype: str = "auto"  # is bfloat16 on a GPU, else float32
    tensor_parallel: int = 1  # GPUs a copy of the model is cut over
    data_parallel: int = 1  # copies side by side
    memory: float = 0.85  # share of a GPU that vLLM may take, or GiB of cache on a CPU
    max_length: int = 10240  # longest prompt plus response, in tokens
    max_rows: int = 256  # sequences that each copy generates side by side
    revision: str | None = None
    trust_remote_code: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of all copies; on a CPU, processes."""
        return self.tensor_parallel * self.data_parallel

    @property
    def backend(self) -> SamplerBackend:
        """The sampler that generates. Raises UserError for an unknown kind."""
        return sampler_backend(self.resolved_kind())

    def resolved_kind(self) -> str:
        """The kind, `auto` replaced. Raises UserError for an unknown one."""
        kinds = sampler_kinds()
        if self.kind == "auto":
            return "vllm" if self.device() == "cuda" and importlib.util.find_spec("vllm") else "torch"
        if self.kind not in kinds:
            raise unknown_name("backend", self.kind, ("auto", *kinds))
        return self.kind

    def resolved_dtype(self) -> str:
        """float32 or bfloat16."""
        return self.dtype if self.dtype != "auto" else "float32" if self.device() == "cpu" else "bfloat16"

    def device(self) -> str:
        """cuda or cpu. Raises UserError for a GPU that torch cannot use."""
        import torch

        check_driver()
        return "cuda" if torch.cuda.is_available() else "cpu"
