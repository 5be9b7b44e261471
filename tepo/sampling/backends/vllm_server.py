"""sampler=vllm_server: vLLM servers on other GPUs or nodes; for an evaluation, servers of its own on this machine."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tepo.common.errors import UserError
from tepo.config.run_config import RunConfig
from tepo.policy.model.shapes import Shape
from tepo.sampling.backends import Room, SamplerBackend, SamplerMemory, SamplerOptions, longest_sequence
from tepo.sampling.backends.vllm import engine_of

if TYPE_CHECKING:
    from torch.nn import Embedding

    from tepo.policy.model.load_policy import Policy
    from tepo.sampling.sampler import Sampler


class VllmServerBackend(SamplerBackend):
    """See `SamplerBackend`. The servers have packages of their own."""

    remote = True

    def check_settings(self, config: RunConfig, ranks: int) -> None:
        """Any ranks; a plan needs no servers. A server cuts its model itself."""
        if (config.sampler.tensor_parallel or 1) > 1:
            where = f"sampler.tensor_parallel={config.sampler.tensor_parallel}"
            fix = "start the servers with --tensor-parallel-size, and leave it out here"
            raise UserError("servers have their own GPUs, which no ranks share", where=where, fix=fix)

    def check_available(self, config: RunConfig) -> None:
        from tepo.sampling.vllm.server_sampler import check_servers

        check_servers(config.sampler.servers)

    def open(self, config: RunConfig, policy: "Policy", source: str, exchange: Path) -> "Sampler":
        from tepo.sampling.stop_tokens import stop_tokens
        from tepo.sampling.vllm.server_sampler import VllmServerSampler

        stop = stop_tokens(policy.model, policy.tokenizer)
        length = longest_sequence(config)
        ids = cast("Embedding", policy.model.get_input_embeddings()).num_embeddings
        return VllmServerSampler(config.sampler.servers, stop, max_length=length, exchange=exchange, vocabulary=ids)

    @contextlib.contextmanager
    def open_model(self, path: str, options: SamplerOptions, scratch: Path) -> Iterator["Sampler"]:
        """One server a copy of the model, each on GPUs of its own; without a GPU they share the CPU."""
        from tepo.sampling.vllm.server_sampler import VllmServerSampler, local_server

        engine, stop = engine_of(path, options)
        scratch.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            starting = []
            for copy, gpus in enumerate(_gpus_of_copies(options)):
                log, cpu = scratch / f"server_{copy}.log", gpus is None
                server = local_server(engine, log=log, memory=options.memory, cpu=cpu, gpus=gpus)
                starting.append(stack.enter_context(server))
            urls = [ready() for ready in starting]  # they load side by side
            sampler = VllmServerSampler(urls, stop, max_length=options.max_length, exchange=scratch / "exchange")
            yield stack.enter_context(contextlib.closing(sampler))

    def memory(self, config: RunConfig, shape: Shape, room: Room) -> SamplerMemory:
        return SamplerMemory(0.0, None)


def _gpus_of_copies(options: SamplerOptions) -> list[str | None]:
    """For each copy of the model the GPUs that its server sees, None on a CPU. Raises UserError when there are too
    few."""
    import torch

    if options.device() == "cpu":
        return [None] * options.data_parallel
    count = options.tensor_parallel
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(index) for index in range(torch.cuda.device_count())]
    if len(devices) < options.gpus:
        what = f"{count} x {options.data_parallel} GPUs asked for, {len(devices)} here"
        raise UserError(what, where="--tensor-parallel, --data-parallel")
    return [",".join(devices[start : start + count]) for start in range(0, options.gpus, count)]


BACKEND: SamplerBackend = VllmServerBackend()
