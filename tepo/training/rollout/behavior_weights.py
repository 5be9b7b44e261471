"""The weights that the sampler still holds while the trainer goes on from them."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class Earlier:
    """A copy in main memory of what this rank holds of the trained parameters. Under ZeRO-3 that is its shards."""

    def __init__(self, model: nn.Module):
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._kept: list[Tensor] = []

    @torch.no_grad()
    def keep(self) -> None:
        """Keep the weights as they are now."""
        live = [_held(parameter) for parameter in self.parameters]
        if not self._kept:
            pinned = torch.cuda.is_available()
            self._kept = [torch.empty_like(value, device="cpu", pin_memory=pinned) for value in live]
        for kept, value in zip(self._kept, live, strict=True):
            kept.copy_(value)

    @contextlib.contextmanager
    def back(self) -> Iterator[None]:
        """The model with the kept weights for the length of the block; on all ranks at once. One tensor at a time is
        held twice."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        """The kept weights for the live ones, in place: optimisers and their flat buffers refer to these tensors."""
        gathered = [parameter for parameter in self.parameters if _gathered(parameter)]
        for parameter in gathered:
            parameter.partition()  # type: ignore[attr-defined]
        for parameter, kept in zip(self.parameters, self._kept, strict=True):
            live = _held(parameter)
            now = live.clone()
            live.copy_(kept)
            kept.copy_(now)
        for parameter in gathered:
            parameter.all_gather()  # type: ignore[attr-defined]


def _held(parameter: nn.Parameter) -> Tensor:
    """This rank's part of a parameter, the live tensor."""
    return getattr(parameter, "ds_tensor", parameter).data


def _gathered(parameter: nn.Parameter) -> bool:
    """Whether ZeRO-3 has put the parameter together on this rank."""
    return hasattr(parameter, "ds_tensor") and parameter.ds_status.name == "AVAILABLE"  # type: ignore[attr-defined]
