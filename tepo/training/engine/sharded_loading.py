"""Loading a model that ZeRO-3 cuts over the ranks, of which none ever holds all of it."""

import contextlib
from collections.abc import Iterator

import torch

from tepo.config.run_config import RunConfig
from tepo.policy.model.model_location import load_options, resolve
from tepo.training.engine.deepspeed_engine import join, settings


@contextlib.contextmanager
def sharded_loading(config: RunConfig, source: str, device: torch.device) -> Iterator[None]:
    """A block in which `from_pretrained` cuts each parameter over the ranks as soon as it is made. All ranks enter it.

    The files are mapped into memory, and the first rank alone reads them. device: this rank's.
    """
    from transformers import AutoConfig
    from transformers.integrations.deepspeed import HfDeepSpeedConfig, unset_hf_deepspeed_config

    join(device)
    model = config.model
    options = load_options(source, model.revision, model.trust_remote_code)
    shape = AutoConfig.from_pretrained(resolve(source), **options)
    held = HfDeepSpeedConfig(settings(config, shape.hidden_size))  # transformers looks at it while somebody holds it
    try:
        yield
    finally:
        unset_hf_deepspeed_config()
        del held
