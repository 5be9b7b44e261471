"""The embedded engine: one process, one device, AdamW; bf16 models train on fp32 master weights."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tepo.config.schema import TrainConfig
from tepo.errors import UserError


def full_state(model: nn.Module) -> dict[str, Tensor]:
    """The state_dict with `lm_head.weight` spelled out: tied models leave it out of `named_parameters`, and samplers that
    keep their own copy would silently go on with the old one."""
    return {name: value.detach() for name, value in model.state_dict().items()}


class TorchEngine:
    """Implements `tepo.training.engine.Engine` for a single device."""

    comm = None

    def __init__(self, model: nn.Module, config: TrainConfig):
        self.model = model
        self.config = config
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.masters = {name: p if p.dtype == torch.float32 else p.detach().float() for name, p in self.parameters.items()}
        self.optimizer = torch.optim.AdamW(
            list(self.masters.values()), lr=config.learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=config.weight_decay, fused=True
        )

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self, learning_rate: float) -> dict[str, float]:
        for name, master in self.masters.items():
            parameter = self.parameters[name]
            if master is not parameter:
                master.grad = None if parameter.grad is None else parameter.grad.float()
                parameter.grad = None
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        norm = float(nn.utils.clip_grad_norm_(list(self.masters.values()), self.config.grad_clip))
        finite = norm < float("inf")  # False for NaN as well
        if finite:
            self.optimizer.step()
            with torch.no_grad():
                for name, master in self.masters.items():
                    if master is not self.parameters[name]:
                        self.parameters[name].copy_(master)
        self.optimizer.zero_grad(set_to_none=True)
        return {"actor/grad_norm": norm, "actor/skipped": 0.0 if finite else 1.0}

    def weights(self) -> dict[str, Tensor]:
        return full_state(self.model)

    def save(self, folder: Path) -> None:
        tensors = {}
        for name, master in self.masters.items():
            state = self.optimizer.state.get(master, {})
            tensors |= {f"{key}.{name}": value for key, value in state.items()}
            if master is not self.parameters[name]:
                tensors[f"master.{name}"] = master
        save_file(tensors, folder / "optimizer.safetensors")

    def load(self, folder: Path) -> None:
        path = folder / "optimizer.safetensors"
        if not path.exists():
            raise UserError("the checkpoint has no state of the embedded engine", where=str(folder), fix="resume it with the engine that wrote it, or start a new run from its weights")
        tensors = load_file(path)
        for name, master in self.masters.items():
            keys = ("step", "exp_avg", "exp_avg_sq")
            if f"step.{name}" in tensors:
                self.optimizer.state[master] = {key: tensors[f"{key}.{name}"].to(master.device if key != "step" else "cpu") for key in keys}
            if f"master.{name}" in tensors:
                master.copy_(tensors[f"master.{name}"])
