"""AdamW on float32 master weights: where they and its two moments lie, and in how many bits the moments are kept."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tepo.common.registry import import_package
from tepo.config.run_config import EngineConfig, TrainConfig
from tepo.training.engine import optimizer_state
from tepo.training.engine.optimizer_state import Piece
from tepo.training.engine.update_rms import squared_update

_OLDEST = (0, 50)  # the first that also updates on a CPU


def import_bitsandbytes() -> Any:
    """The package of 8-bit AdamW: both moments in 8 bits, a scale for each block of 256 (Dettmers et al. 2022, arXiv
    2110.02861); tensors below 4,096 numbers keep theirs in 32. Raises UserError when it is missing, too old or
    broken."""
    return import_package(
        "bitsandbytes", "bitsandbytes", _OLDEST, "engine.optimizer=adamw_8bit", "engine.optimizer=adamw"
    )


_KINDS = ("step", *optimizer_state.KEYS)
_KINDS_8BIT = ("step", "state1", "state2", "qmap1", "qmap2", "absmax1", "absmax2")  # bitsandbytes' names


class MasterAdamW:
    """Updates named parameters.

    The master of a float32 parameter is the parameter itself, but for `engine.offload`, which keeps all masters and
    moments in the CPU's memory. Offloaded parameters are updated one after another, so that one pinned buffer of the
    largest takes all gradients across, and the weights back; those with 8-bit moments too, so that what they moved is a
    copy of one of them and no more.
    """

    def __init__(self, parameters: Mapping[str, Tensor], train: TrainConfig, engine: EngineConfig):
        self.parameters, self.eight_bit = parameters, engine.optimizer == "adamw_8bit"
        self.masters: dict[str, Tensor] = {}
        for name, parameter in parameters.items():
            if engine.offload:
                self.masters[name] = parameter.detach().to("cpu", torch.float32, copy=True)
            else:
                self.masters[name] = parameter if parameter.dtype == torch.float32 else parameter.detach().float()
        self._buffer: Tensor | None = None
        if engine.offload:  # for the largest; pinned beside a GPU, which copies into it at full speed
            largest = max(parameter.numel() for parameter in parameters.values())
            gpu = any(parameter.is_cuda for parameter in parameters.values())
            self._buffer = torch.empty(largest, pin_memory=gpu)
        names = list(self.masters)
        self._parts = [[name] for name in names] if engine.offload or self.eight_bit else [names]
        options = optimizer_state.adamw_options(train)
        self._optimizers: dict[str, Any] = {}  # torch's, or one of bitsandbytes
        make = import_bitsandbytes().optim.AdamW8bit if self.eight_bit else partial(torch.optim.AdamW, fused=True)
        for part in self._parts:
            self._optimizers |= dict.fromkeys(part, make([self.masters[name] for name in part], **options))

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], learning_rate: float) -> Tensor:
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
                squares.append(squared_update(optimizer, masters, sampled=self._buffer is not None))
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

    def close(self) -> None:
        """Drop masters and moments, whoever still holds this."""
        for optimizer in self._optimizers.values():
            optimizer.state.clear()
            optimizer.param_groups.clear()
        self.masters, self._optimizers, self._buffer = {}, {}, None

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the entries of `state`."""
        return ("master", *(_KINDS_8BIT if self.eight_bit else _KINDS))

    def state(self) -> Iterator[Piece]:
        """Full tensors: the optimiser's own kinds, and `master` where it is not the parameter. No state before the
        first update but masters."""
        for name, master in self.masters.items():
            for kind, value in self._optimizers[name].state.get(master, {}).items():
                yield Piece(kind, name, torch.as_tensor(value))
            if master is not self.parameters[name]:
                yield Piece("master", name, master)

    @torch.no_grad()
    def load(self, piece: Piece) -> None:
        """Take one piece of a state, of one of the `kinds`."""
        master = self.masters[piece.name]
        state = self._optimizers[piece.name].state[master]
        if piece.kind == "master" or piece.start is not None:
            target = master if piece.kind == "master" else state.setdefault(piece.kind, torch.zeros_like(master))
            own, values = piece.overlap(0, target.numel())
            target.view(-1)[own] = values.to(target.device)
        else:  # a fused AdamW reads the step where the weights are; an 8-bit one takes a number of Python's
            of_python = self.eight_bit and piece.kind == "step"
            state[piece.kind] = int(piece.value) if of_python else piece.value.to(master.device)
