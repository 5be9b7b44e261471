"""sampler=torch: the embedded sampler, on the policy's own weights."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tepo.common.errors import UserError
from tepo.config.run_config import RunConfig, chosen
from tepo.policy.model.shapes import Shape, number_bytes
from tepo.sampling.backends import Room, SamplerBackend, SamplerMemory, SamplerOptions, longest_sequence
from tepo.sampling.embedded.kv_cache import CPU_BYTES, gpu_cache_bytes, row_bytes

if TYPE_CHECKING:
    from tepo.policy.model.load_policy import Policy
    from tepo.sampling.sampler import Sampler


class TorchSamplerBackend(SamplerBackend):
    shares_weights = True
    full_rows = True
    part_rows = 256

    def check_settings(self, config: RunConfig, ranks: int) -> None:
        """An engine that several ranks hold."""
        if (config.sampler.tensor_parallel or 1) > 1:
            where, fix = f"sampler.tensor_parallel={config.sampler.tensor_parallel}", "sampler=vllm, or leave it out"
            raise UserError("the embedded sampler is not cut over ranks", where=where, fix=fix)

    def open(self, config: RunConfig, policy: "Policy", source: str, exchange: Path) -> "Sampler":
        from tepo.sampling.embedded.torch_sampler import TorchSampler

        return TorchSampler(policy.model, policy.tokenizer, max_rows=chosen(config.sampler.max_rows))

    @contextlib.contextmanager
    def open_model(self, path: str, options: SamplerOptions, scratch: Path) -> Iterator["Sampler"]:
        from tepo.policy.model.load_policy import load_policy
        from tepo.sampling.embedded.torch_sampler import TorchSampler

        if options.gpus > 1:
            where, fix = "--tensor-parallel, --data-parallel", "--backend vllm"
            raise UserError("the torch backend uses one device", where=where, fix=fix)
        policy = load_policy(
            path,
            dtype=options.resolved_dtype(),
            device=options.device(),
            revision=options.revision,
            trust_remote_code=options.trust_remote_code,
        )
        with contextlib.closing(TorchSampler(policy.model, policy.tokenizer)) as sampler:
            yield sampler

    def memory(self, config: RunConfig, shape: Shape, room: Room) -> SamplerMemory:
        """The layers' weights once more for decoding, all of them where they are not the trainer's, and the rows of the
        cache that fit beside."""
        size = number_bytes(config.model.dtype)
        row = row_bytes(shape.cache_numbers, size, longest_sequence(config), gpu=room.device > 0)
        copied = (1 if room.shared else 2) * size * shape.parameters
        free = gpu_cache_bytes(room.device - room.trainer - copied, room.device) if room.device else CPU_BYTES
        cache = row * max(1, min(chosen(config.sampler.max_rows), free // row))  # a row at least, though it may not fit
        return SamplerMemory(copied + cache, float(cache))


BACKEND: SamplerBackend = TorchSamplerBackend()
