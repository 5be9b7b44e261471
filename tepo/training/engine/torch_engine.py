"""The embedded engine: one process, one device, AdamW on float32 master weights; gradients are summed in float32.

`engine.offload` keeps all masters and moments in the CPU's memory, `engine.optimizer=adamw_8bit` keeps both moments in
8 bits.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tepo.common.errors import UserError
from tepo.common.registry import import_package
from tepo.config.run_config import EngineConfig, TrainConfig
from tepo.policy.model.allocator import empty, give_back
from tepo.policy.model.lora import full_state
from tepo.training.engine import optimizer_state
from tepo.training.engine.optimizer_state import Piece
from tepo.training.engine.update_rms import squared_update

_LARGE = 2**24  # parameters above which memory counts more than the time to take it again
_OLDEST = (0, 50)  # the first bitsandbytes that also updates on a CPU
_KINDS = ("master", "step", *optimizer_state.KEYS)
_KINDS_8BIT = ("master", "step", "state1", "state2", "qmap1", "qmap2", "absmax1", "absmax2")  # bitsandbytes' names


def import_bitsandbytes() -> Any:
    """The package of 8-bit AdamW: both moments in 8 bits, a scale for each block of 256 (Dettmers et al. 2022, arXiv
    2110.02861); tensors below 4,096 numbers keep theirs in 32. Raises UserError when it is missing, too old or
    broken."""
    key = "engine.optimizer=adamw"
    return import_package("bitsandbytes", "bitsandbytes", _OLDEST, f"{key}_8bit", key)


@torch.no_grad()
def _move_gradient(parameter: Tensor, name: str, sums: dict[str, Tensor]) -> None:
    """Add the gradient of a micro-batch to the float32 sum of the parameter's name, and free it: in bfloat16 a sum of
    many would lose what is below 1/256 of it."""
    assert parameter.grad is not None
    if name in sums:
        sums[name].add_(parameter.grad)
    else:
        sums[name] = parameter.grad.float()
    parameter.grad = None


class TorchEngine:
    """Implements `tepo.training.engine.engine.Engine` for a single device.

    masters: the float32 weights by name that the optimiser updates, each the parameter itself where that is in float32
    on its device. Offloaded ones are updated one after another, so that one pinned buffer of the largest takes all
    gradients across, and the weights back; those with 8-bit moments too, so that what they moved is a copy of one of
    them and no more.
    """

    comm = None

    def __init__(self, model: nn.Module, config: TrainConfig, engine: EngineConfig | None = None):
        engine = engine or EngineConfig()
        self.model, self.config = model, config
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.size = sum(parameter.numel() for parameter in self.parameters.values())
        self.eight_bit = engine.optimizer == "adamw_8bit"
        self.masters: dict[str, Tensor] = {}
        self._sums: dict[str, Tensor] = {}  # gradients of what is not in float32
        for name, parameter in self.parameters.items():
            if parameter.dtype != torch.float32:
                parameter.register_post_accumulate_grad_hook(partial(_move_gradient, name=name, sums=self._sums))
            if engine.offload:
                self.masters[name] = parameter.detach().to("cpu", torch.float32, copy=True)
            else:
                self.masters[name] = parameter if parameter.dtype == torch.float32 else parameter.detach().float()
        self._buffer: Tensor | None = None
        if engine.offload:  # for the largest; pinned beside a GPU, which copies into it at full speed
            largest = max(parameter.numel() for parameter in self.parameters.values())
            gpu = any(parameter.is_cuda for parameter in self.parameters.values())
            self._buffer = torch.empty(largest, pin_memory=gpu)
        names = list(self.masters)
        self._parts = [[name] for name in names] if engine.offload or self.eight_bit else [names]
        self._optimizers: dict[str, Any] = {}  # torch's, or one of bitsandbytes
        make = import_bitsandbytes().optim.AdamW8bit if self.eight_bit else partial(torch.optim.AdamW, fused=True)
        for part in self._parts:
            optimizer = make([self.masters[name] for name in part], **optimizer_state.adamw_options(config))
            self._optimizers |= dict.fromkeys(part, optimizer)

    def backward(self, loss: Tensor) -> None:
        loss.backward()
        if self.size > _LARGE and not loss.is_cuda:
            give_back()

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
            moved = (self.update(gradients, learning_rate) / self.size).sqrt()
        self._sums.clear()
        for parameter in self.parameters.values():
            parameter.grad = None
        if self.size > _LARGE and not total.is_cuda:
            give_back()
        return {
            "actor/grad_norm": norm,
            "actor/grad_clipped": float(finite and norm > self.config.grad_clip),
            "actor/update_rms": moved,
            "actor/skipped": 0.0 if finite else 1.0,
        }

    @torch.no_grad()
    def update(self, gradients: dict[str, Tensor], learning_rate: float) -> Tensor:
        """Update masters and parameters. gradients: float32, on the devices of the parameters; a parameter without one
        stays as it is. Returns the sum of squares, float64 [], of what was added to the masters."""
        squares = []
        for part in self._parts:
            moving = [name for name in part if name in gradients]
            if not moving:
                continue
            for name in moving:
                gradient = gradients[name]
                if self._buffer is not None:  # across into main memory
                    gradient = self._buffer[: gradient.numel()].view(gradient.shape).copy_(gradient)
                self.masters[name].grad = gradient
            optimizer = self._optimizers[part[0]]
            optimizer.param_groups[0]["lr"] = learning_rate
            masters = [self.masters[name] for name in part]
            before = masters[0].detach().clone() if self.eight_bit else None
            optimizer.step()
            if before is None:  # by AdamW's moments, which are exact; a sample of what is in main memory
                squares.append(squared_update(optimizer, masters, sampled=not masters[0].is_cuda))
            else:
                squares.append(torch.linalg.vector_norm(before.sub_(masters[0])).double().square())
            optimizer.zero_grad(set_to_none=True)
            for name in moving:
                weight, master = self.parameters[name], self.masters[name]
                if self._buffer is not None:  # back by way of the buffer, which the gradient no longer needs
                    master = self._buffer.view(weight.dtype)[: master.numel()].view(master.shape).copy_(master)
                if master is not weight:
                    weight.copy_(master)
        return torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64)

    def weights(self) -> dict[str, Tensor]:
        return full_state(self.model)

    def state(self) -> Iterator[Piece]:
        """Full tensors: the optimiser's own kinds, and `master` where it is not the parameter. Nothing before the first
        update but masters."""
        for name, master in self.masters.items():
            for kind, value in self._optimizers[name].state.get(master, {}).items():
                yield Piece(kind, name, torch.as_tensor(value))
            if master is not self.parameters[name]:
                yield Piece("master", name, master)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        halves = {name: value.numel() for name, value in self.parameters.items() if value.dtype != torch.float32}
        for piece in optimizer_state.read(folder, halves):
            if piece.name not in self.parameters:
                what = f"the optimiser state belongs to another model: it has {piece.name}"
                raise UserError(what, where=str(folder), fix="resume with the run's own model")
            if piece.kind not in (_KINDS_8BIT if self.eight_bit else _KINDS):
                what = f"the optimiser state is of another optimiser: it has {piece.kind}"
                raise UserError(what, where=str(folder), fix="resume with the engine.optimizer that wrote it")
            master = self.masters[piece.name]
            state = self._optimizers[piece.name].state[master]
            if piece.kind == "master" or piece.start is not None:
                target = master if piece.kind == "master" else state.setdefault(piece.kind, torch.zeros_like(master))
                span, values = piece.overlap(0, target.numel())
                target.view(-1)[span] = values.to(target.device)
            else:  # a fused AdamW reads the step where the weights are; an 8-bit one takes a number of Python's
                of_python = self.eight_bit and piece.kind == "step"
                state[piece.kind] = int(piece.value) if of_python else piece.value.to(master.device)

    def close(self) -> None:
        """See `Engine.close`: drop gradients, masters and moments, whoever still holds this."""
        for optimizer in self._optimizers.values():
            optimizer.state.clear()
            optimizer.param_groups.clear()
        self._sums.clear()
        self.masters, self._optimizers, self._buffer = {}, {}, None
        empty((*self.model.parameters(), *self.model.buffers()))
