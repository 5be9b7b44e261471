"""engine=torch: the embedded engine, one process and one device."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tepo.config.schema import RunConfig
from tepo.errors import UserError
from tepo.policy.shapes import Shape, number_bytes
from tepo.training.engines import EngineBackend, EngineMemory, deepspeed

if TYPE_CHECKING:
    from tepo.policy.load_policy import Policy
    from tepo.training.engine import Engine


class TorchEngineBackend:
    """See `EngineBackend`."""

    shares_weights = True
    several_ranks = False
    packages: Mapping[str, str] = {}

    def check_settings(self, config: RunConfig, ranks: int) -> None:
        if ranks > 1:
            raise UserError(
                f"engine=torch trains in one process, and {ranks} were started",
                where="engine.kind=torch",
                fix="engine=deepspeed, or start it without a launcher (a study: --gpus 1)",
            )

    def check_available(self, config: RunConfig) -> None:
        """torch is always there; adapters take peft."""
        if config.model.lora_rank:
            from tepo.policy.lora import check_installed

            check_installed()

    def open(self, config: RunConfig, policy: "Policy") -> "Engine":
        from tepo.training.torch_engine import TorchEngine

        return TorchEngine(policy.model, config.train)

    def memory(self, config: RunConfig, shape: Shape, ranks: int, node_ranks: int) -> EngineMemory:
        """AdamW's two moments, and float32 masters of bfloat16 weights; gradients in float32. With LoRA, of adapters
        alone."""
        size, n = number_bytes(config.model.dtype), float(shape.parameters)
        adapters = float(shape.adapter_parameters(config.model.lora_rank))
        trained = adapters or n
        return EngineMemory(size * (n + adapters), 4 * trained, (12 if size == 2 else 8) * trained)

    def remedies(self, config: RunConfig) -> tuple[str, ...]:
        return ("engine.kind=deepspeed", *deepspeed.BACKEND.remedies(config))


BACKEND: EngineBackend = TorchEngineBackend()
