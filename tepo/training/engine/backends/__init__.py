"""The engines by name: `engine.kind=NAME` is the module NAME of this folder.

A module declares an `EngineBackend`: how the engine is checked and opened, what memory it takes, what advice it gives.
The planner reads it, so these files import torch and the like inside functions. To add an engine: its file here, and
`tepo/config/engine/NAME.yaml`.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tepo.common import registry
from tepo.config.run_config import RunConfig
from tepo.policy.model.shapes import Shape

if TYPE_CHECKING:
    import torch

    from tepo.policy.model.load_policy import Policy
    from tepo.training.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Bytes that an engine takes, of one GPU where nothing else is said."""

    weights: float
    gradients: float
    optimiser: float  # its state
    step: float = 0.0  # what the optimiser's step alone takes
    host: float = 0.0  # main memory of a node
    loading: float = 0.0  # at the peak of loading the model
    gathered: float = 0.0  # weights of other ranks that lie there during passes
    load_host: float = 0.0  # main memory of a node while the model is loaded


class EngineBackend(Protocol):
    """Declarations of an engine."""

    shares_weights: bool  # its policy keeps its weights in full, so that a sampler can read them there
    several_ranks: bool  # it trains over more than one process
    packages: Mapping[str, str] = {}  # distributions, of which it needs one, and how to get each

    def check_settings(self, config: RunConfig, ranks: int) -> None:
        """Raises UserError for settings, or ranks, that it cannot work with. Looks at nothing but them."""
        ...

    def check_available(self, config: RunConfig) -> None:
        """Raises UserError when what it runs on is missing."""
        ...

    def loading(self, config: RunConfig, source: str, device: "torch.device") -> AbstractContextManager[None]:
        """A block in which the policy is loaded, for an engine that cuts it over the ranks from the start."""
        return nullcontext()

    def open(self, config: RunConfig, policy: "Policy") -> "Engine":
        """The engine of a run, training the policy."""
        ...

    def memory(self, config: RunConfig, shape: Shape, ranks: int, node_ranks: int) -> EngineMemory:
        """Memory that it takes of each GPU, from the sizes of the model. node_ranks: ranks on one node."""
        ...

    def remedies(self, config: RunConfig) -> Sequence[str]:
        """Overrides beyond the layout that save memory, the cheapest in time first; such as go together in one string,
        with spaces."""
        return ()


def engine_kinds() -> list[str]:
    """Values of `engine.kind`."""
    return registry.kinds(__name__)


def engine_backend(kind: str) -> EngineBackend:
    """Return what an engine declares. Raises UserError for an unknown one."""
    return registry.backend(__name__, kind, "engine")
