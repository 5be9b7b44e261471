"""The embedded engine:
one process, one device, AdamW; bf16 models train on fp32 master weights, and their gradients are summed in fp32."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from tepo.common.errors import UserError
from tepo.config.run_config import EngineConfig, TrainConfig
from tepo.policy.model.allocator import empty
from tepo.policy.model.lora import full_state
from tepo.training.engine import optimizer_state
from tepo.training.engine.master_adamw import MasterAdamW
from tepo.training.engine.optimizer_state import Piece


@torch.no_grad()
def _move_gradient(parameter: Tensor, name: str, sums: dict[str, Tensor]) -> None:
    """Add the gradient of a micro-batch to the float32 sum of the parameter's name, and free it:
    in bfloat16 a sum of many would lose what is below 1/256 of it."""
    assert parameter.grad is not None
    if name in sums:
        sums[name].add_(parameter.grad)
    else:
        sums[name] = parameter.grad.float()
    parameter.grad = None


class TorchEngine:
    """Implements `tepo.training.engine.engine.Engine` for a single device."""

    comm = None

    def __init__(self, model: nn.Module, config: TrainConfig, engine: EngineConfig | None = None):
        self.model = model
        self.config = config
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.size = sum(parameter.numel() for parameter in self.parameters.values())
        self._sums: dict[str, Tensor] = {}  # gradients of what is not in float32
        for name, parameter in self.parameters.items():
            if parameter.dtype != torch.float32:
                parameter.register_post_accumulate_grad_hook(partial(_move_gradient, name=name, sums=self._sums))
        self.optimizer = MasterAdamW(self.parameters, config, engine or EngineConfig())

    @property
    def masters(self) -> dict[str, Tensor]:
        """The float32 weights by name that the optimiser updates."""
        return self.optimizer.masters

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self, learning_rate: float) -> dict[str, float | Tensor]:
        gradients = {
            name: gradient
            for name, parameter in self.parameters.items()
            if (gradient := self._sums.get(name, parameter.grad)) is not None
        }
        total = nn.utils.get_total_norm(list(gradients.values()))
        norm = float(total)
        finite = norm < float("inf")  # False for NaN as well
        moved: float | Tensor = 0.0
        if finite:
            scale = (self.config.grad_clip / (total + 1e-6)).clamp(max=1.0)
            for gradient in gradients.values():
                gradient.mul_(scale)
            moved = (self.optimizer.step(gradients, learning_rate) / self.size).sqrt()
        self._sums.clear()
        for parameter in self.parameters.values():
            parameter.grad = None
        return {
            "actor/grad_norm": norm,
            "actor/grad_clipped": float(finite and norm > self.config.grad_clip),
            "actor/update_rms": moved,
            "actor/skipped": 0.0 if finite else 1.0,
        }

    def weights(self) -> dict[str, Tensor]:
        return full_state(self.model)

    def state(self) -> Iterator[Piece]:
        return self.optimizer.state()

    def load(self, folder: Path) -> None:
        halves = {name: value.numel() for name, value in self.parameters.items() if value.dtype != torch.float32}
        for piece in optimizer_state.read(folder, halves):
            if piece.name not in self.parameters:
                what = f"the optimiser state belongs to another model: it has {piece.name}"
                raise UserError(what, where=str(folder), fix="resume with the run's own model")
            if piece.kind not in self.optimizer.kinds:
                what = f"the optimiser state is of another optimiser: it has {piece.kind}"
                raise UserError(what, where=str(folder), fix="resume with the engine.optimizer that wrote it")
            self.optimizer.load(piece)

    def close(self) -> None:
        self._sums.clear()
        self.optimizer.close()
        empty((*self.model.parameters(), *self.model.buffers()))
