"""Samplers that measure: the one that a run trains with, or one that loads a model by its path."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tepo.config.run_config import RunConfig, chosen
from tepo.jobs.shared_engine import Generator
from tepo.jobs.weights import Weights, tokenizer_of
from tepo.sampling.backends import SamplerOptions, longest_sequence, sampler_backend
from tepo.store.run_folder import RunFolder

if TYPE_CHECKING:
    from tepo.sampling.sampler import Sampler


def trainers_sampler(config: RunConfig, weights: Weights, run: RunFolder) -> Generator:
    """The sampler that a configuration trains with, of the given weights, with the GPU for itself. Where ranks train
    with engines of their own, there are as many on the GPUs of this machine that the ranks had."""
    from tepo.training.distributed.process_group import local_world_size
    from tepo.training.resources.memory import with_all
    from tepo.training.setup import gpus_here, pick_device, shape_at

    sampler, gpus = config.sampler, local_world_size()
    backend, length = sampler_backend(sampler.kind), longest_sequence(config)
    if gpus > 1 and not (backend.shares_weights or backend.remote):
        size = sampler.tensor_parallel
        options = SamplerOptions(sampler.kind, config.model.dtype, size, gpus // size, max_length=length)
        return model_sampler(weights, options, run)
    # One sampler has this GPU for itself: its share and its rows are chosen where they are open.
    config = replace(config, sampler=replace(sampler, tensor_parallel=1))
    here = gpus_here(pick_device(config.engine.device))
    if here.bytes or sampler.max_rows is None:
        config = with_all(config, shape_at(config, weights.path), here)
    if backend.shares_weights or backend.remote:
        return _of_policy(config, weights, run.exchange)
    rows = chosen(config.sampler.max_rows)
    options = SamplerOptions(sampler.kind, config.model.dtype, max_length=length, max_rows=rows)
    if config.sampler.memory_fraction is not None:  # on a CPU it has a size of its own
        options = replace(options, memory=config.sampler.memory_fraction)
    return model_sampler(weights, options, run)


@contextmanager
def _of_policy(config: RunConfig, weights: Weights, exchange: Path) -> Iterator[tuple["Sampler", Any]]:
    """One that is given a policy: in this process, or what servers there are. For these the policy stays on the CPU."""
    from tepo.policy.model.load_policy import load_policy
    from tepo.policy.model.lora import full_state
    from tepo.policy.model.model_location import resolve
    from tepo.training.setup import make_sampler, pick_device

    device, remote = pick_device(config.engine.device), sampler_backend(config.sampler.kind).remote
    policy = load_policy(
        weights.path,
        dtype=config.model.dtype,
        device="cpu" if remote else str(device),
        revision=weights.revision,
        trust_remote_code=weights.trust_remote_code,
    )
    with closing(make_sampler(config, policy, resolve(weights.path), exchange)) as sampler:
        if remote:
            sampler.sync(full_state(policy.model))
        yield sampler, policy.tokenizer


@contextmanager
def model_sampler(weights: Weights, options: SamplerOptions, run: RunFolder) -> Iterator[tuple["Sampler", Any]]:
    """A sampler that loads the weights itself, on as many GPUs as the options say."""
    options = replace(options, revision=weights.revision, trust_remote_code=weights.trust_remote_code)
    with options.backend.open_model(weights.path, options, run.server_logs) as sampler:
        yield sampler, tokenizer_of(weights)
