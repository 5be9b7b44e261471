"""The embedded engine:
one process, one device, AdamW; bf16 models train on fp32 master weights, in which gradients are summed."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from tepo.config.schema import TrainConfig
from tepo.errors import UserError
from tepo.policy.lora import full_state
from tepo.training import optimizer_state
from tepo.training.update_size import squared_update


@torch.no_grad()
def _move_gradient(parameter: Tensor, master: Tensor) -> None:
    """Add the gradient of a micro-batch to that of the float32 master:
    in bfloat16 a sum of many would lose what is below 1/256 of it."""
    assert parameter.grad is not None
    if master.grad is None:
        master.grad = parameter.grad.float()
    else:
        master.grad.add_(parameter.grad)
    parameter.grad = None


class TorchEngine:
    """Implements `tepo.training.engine.Engine` for a single device."""

    comm = None

    def __init__(self, model: nn.Module, config: TrainConfig):
        self.model = model
        self.config = config
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.masters = {
            name: p if p.dtype == torch.float32 else p.detach().float() for name, p in self.parameters.items()
        }
        self.size = sum(master.numel() for master in self.masters.values())
        for name, master in self.masters.items():
            if master is not self.parameters[name]:
                self.parameters[name].register_post_accumulate_grad_hook(partial(_move_gradient, master=master))
        self.optimizer = torch.optim.AdamW(
            list(self.masters.values()),
            lr=config.learning_rate,
            betas=(0.9, config.adam_beta2),
            eps=1e-8,
            weight_decay=config.weight_decay,
            fused=True,
        )

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self, learning_rate: float) -> dict[str, float | Tensor]:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        norm = float(nn.utils.clip_grad_norm_(list(self.masters.values()), self.config.grad_clip))
        finite = norm < float("inf")  # False for NaN as well
        moved: float | Tensor = 0.0
        if finite:
            self.optimizer.step()
            moved = (squared_update(self.optimizer, self.masters.values()) / self.size).sqrt()
            with torch.no_grad():
                for name, master in self.masters.items():
                    if master is not self.parameters[name]:
                        self.parameters[name].copy_(master)
        self.optimizer.zero_grad(set_to_none=True)
        return {
            "actor/grad_norm": norm,
            "actor/grad_clipped": float(finite and norm > self.config.grad_clip),
            "actor/update_rms": moved,
            "actor/skipped": 0.0 if finite else 1.0,
        }

    def weights(self) -> dict[str, Tensor]:
        return full_state(self.model)

    def save(self, folder: Path) -> None:
        optimizer_state.write(folder, self._state())

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        for name, master in self.masters.items():
            for key, value in self.optimizer.state.get(master, {}).items():
                yield f"{key}.{name}", value
            if master is not self.parameters[name]:
                yield f"master.{name}", master

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        for key, value in optimizer_state.read(folder):
            kind, _, name = key.partition(".")
            if name not in self.masters:
                raise UserError(
                    f"the optimiser state belongs to another model: it has {name}",
                    where=str(folder),
                    fix="resume with the run's own model",
                )
            master = self.masters[name]
            if kind != "master":
                self.optimizer.state[master][kind] = value.to(
                    master.device
                )  # the step too: a fused AdamW reads it there
            elif master is not self.parameters[name]:
                master.copy_(value)
