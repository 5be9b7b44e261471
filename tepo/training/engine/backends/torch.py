"""engine=torch: the embedded engine, one process and one device."""

from typing import TYPE_CHECKING

from tepo.common.errors import UserError
from tepo.config.run_config import RunConfig
from tepo.policy.model.shapes import Shape, number_bytes
from tepo.training.engine.backends import EngineBackend, EngineMemory

if TYPE_CHECKING:
    from tepo.policy.model.load_policy import Policy
    from tepo.training.engine.engine import Engine

MOMENTS_8BIT = 2 * (1 + 4 / 256)  # bytes of both moments of a number: one each, and a float32 scale for 256 of them


class TorchEngineBackend(EngineBackend):
    shares_weights = True
    several_ranks = False

    def check_settings(self, config: RunConfig, ranks: int) -> None:
        if ranks > 1:
            what = f"engine=torch trains in one process, and {ranks} were started"
            fix = "engine=deepspeed, or start it without a launcher (a study: --gpus 1)"
            raise UserError(what, where="engine.kind=torch", fix=fix)
        if config.engine.offload and config.engine.optimizer == "adamw_8bit":
            what = "8-bit moments are updated on the GPU, and engine.offload updates on the CPU"
            fix = "engine.offload=false, or engine.optimizer=adamw: the GPU then holds neither moments nor masters"
            raise UserError(what, where="engine.optimizer=adamw_8bit", fix=fix)

    def check_available(self, config: RunConfig) -> None:
        """torch is always there; adapters take peft, 8-bit moments bitsandbytes."""
        if config.model.lora_rank:
            from tepo.policy.model.lora import check_installed

            check_installed()
        if config.engine.optimizer == "adamw_8bit":
            from tepo.training.engine.torch_engine import import_bitsandbytes

            import_bitsandbytes()

    def open(self, config: RunConfig, policy: "Policy") -> "Engine":
        from tepo.training.engine.torch_engine import TorchEngine

        return TorchEngine(policy.model, config.train, config.engine)

    def memory(self, config: RunConfig, shape: Shape, ranks: int, node_ranks: int) -> EngineMemory:
        """AdamW's two moments, and float32 masters of bfloat16 weights; gradients in float32. With LoRA, of adapters
        alone.

        Offloaded, all of it but the gradients is in main memory, with a buffer of the largest tensor. The step with
        8-bit moments copies one tensor at a time. The model is loaded into main memory and moved from there.
        """
        size, n = number_bytes(config.model.dtype), float(shape.parameters)
        adapters = float(shape.adapter_parameters(config.model.lora_rank))
        weights, trained = size * (n + adapters), adapters or n
        largest = 4.0 * (config.model.lora_rank * shape.inner if adapters else shape.head_parameters)
        eight_bit = config.engine.optimizer == "adamw_8bit"
        optimiser = (4 * (size == 2) + (MOMENTS_8BIT if eight_bit else 8)) * trained
        step, host = largest * eight_bit, 0.0
        if config.engine.offload:
            optimiser, step, host = 0.0, 0.0, 12 * trained + largest
        return EngineMemory(weights, 4 * trained, optimiser, step, host, loading=weights, load_host=weights)

    def remedies(self, config: RunConfig) -> list[str]:
        """8-bit moments take no time; 32-bit ones may lie in main memory; DeepSpeed offloads gradients too, and last
        weights."""
        eight_bit = config.engine.optimizer == "adamw_8bit"
        other = f"engine.optimizer={'adamw' if eight_bit else 'adamw_8bit'}"
        return [other, "engine.kind=deepspeed" + " engine.optimizer=adamw" * eight_bit]


BACKEND: EngineBackend = TorchEngineBackend()
