"""Weights that ZeRO-3 cuts over the ranks: loaded without any rank holding all of them, and read tensor by tensor."""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from tepo.config.schema import RunConfig
from tepo.policy.location import resolve
from tepo.training.deepspeed_engine import join, settings


@contextlib.contextmanager
def sharded_loading(config: RunConfig, source: str, device: torch.device) -> Iterator[None]:
    """A block in which `from_pretrained` cuts each parameter over the ranks as soon as it is made. All ranks enter it.

    The files are mapped into memory, and the first rank alone reads them. device: this rank's.
    """
    from transformers import AutoConfig
    from transformers.integrations.deepspeed import HfDeepSpeedConfig, unset_hf_deepspeed_config

    join(device)
    model = config.model
    shape = AutoConfig.from_pretrained(
        resolve(source), revision=model.revision, trust_remote_code=model.trust_remote_code
    )
    held = HfDeepSpeedConfig(settings(config, shape.hidden_size))  # transformers looks at it while somebody holds it
    try:
        yield
    finally:
        unset_hf_deepspeed_config()
        del held


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

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
