"""The engine, which trains the weights. Implementations: `torch_engine` (embedded, one device) and `deepspeed_engine`.

Losses arrive already divided by the global denominators of the mini-batch, so an engine SUMS gradients
over micro-batches and ranks and never averages them.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from tepo.training.distributed.comm import Comm
from tepo.training.engine.optimizer_state import Piece


class Engine(Protocol):
    """Optimises a model, alone or as one of several ranks."""

    @property
    def model(self) -> nn.Module:
        """Call it for forward passes."""
        ...

    @property
    def comm(self) -> Comm | None:
        """None in a single process."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of one micro-batch."""
        ...

    def step(self, learning_rate: float) -> Mapping[str, float | Tensor]:
        """Sum gradients over ranks, clip their norm, update, zero them. Returns `actor/grad_norm` (before clipping),
        `actor/grad_clipped` (1.0 when it was above `train.grad_clip`), `actor/update_rms` (root mean square of what the
        update added to the parameters) and `actor/skipped` (1.0 when the norm was not finite and the update was left
        out)."""
        ...

    def weights(self) -> Mapping[str, Tensor]:
        """The full state_dict (`lm_head.weight` present also for tied models): live tensors, and under ZeRO-3 such as
        are gathered when they are read, so every rank reads all of them in order, and keeps none. Asked for between
        updates."""
        ...

    def state(self) -> Iterable[Piece]:
        """Return what resuming needs beside the model, the optimiser's state: this rank's part of it, live tensors
        where possible. No rank waits for another."""
        ...

    def load(self, folder: Path) -> None:
        """Take the `state` that any number of ranks wrote into a checkpoint; the model's weights were loaded before."""
        ...

    def close(self) -> None:
        """Free the model, gradients, masters and moments, whoever still refers to them. No rank waits for another."""
        ...
