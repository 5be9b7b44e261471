"""The weights of a model that ZeRO-3 cuts over the ranks, read tensor by tensor."""

from collections.abc import Iterator, Mapping

from torch import Tensor, nn


class Streamed(Mapping[str, Tensor]):
    """The full `state_dict` of a model under ZeRO-3, in which a tensor is gathered when it is looked up and lives as
    long as its reader holds it. Every rank looks up the same names in the same order."""

    def __init__(self, model: nn.Module):
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self._buffers = dict(model.named_buffers())
        self._names = list(model.state_dict())

    def __getitem__(self, name: str) -> Tensor:
        from deepspeed.runtime.zero import GatheredParameters

        if name in self._buffers:
            return self._buffers[name].detach()
        parameter = self._parameters[name]
        if parameter.ds_status.name == "AVAILABLE":  # type: ignore[attr-defined]  # the output matrix, norms: always
            return parameter.detach()
        with GatheredParameters([parameter]):
            return parameter.detach()  # the parameter lets go of it, this name does not

    def bytes(self, name: str) -> int:
        """Bytes of the full tensor, which is not gathered for it."""
        if name in self._buffers:
            return self._buffers[name].nbytes
        parameter = self._parameters[name]
        return parameter.ds_numel * parameter.element_size()  # type: ignore[attr-defined]

    def same(self, name: str) -> int:
        """Equal for the names of tied tensors."""
        return id(self._buffers[name] if name in self._buffers else self._parameters[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
