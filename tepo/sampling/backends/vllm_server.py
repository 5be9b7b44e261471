"""sampler=vllm_server: vLLM servers on other GPUs or nodes; for an evaluation, servers of its own on this machine."""

import contextlib
import os
from collections.abc import Iterator, Mapping
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


class VllmServerBackend:
    """See `SamplerBackend`."""

    shares_weights = False
    remote = True
    full_rows = False
    part_rows = 1024
    packages: Mapping[str, str] = {}  # the servers have their own

    def segments_may_grow(self, config: RunConfig) -> bool:
        return True

    def check_settings(self, config: RunConfig, ranks: int) -> None:
        """Any ranks; a plan needs no servers. A server cuts its model itself."""
        if config.sampler.tensor_parallel > 1:
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
            for copy, own in enumerate(_visible(options)):
                with _environment(own):
                    log, cpu = scratch / f"server_{copy}.log", options.device() == "cpu"
                    server = local_server(engine, log=log, memory=options.memory, cpu=cpu)
                    starting.append(stack.enter_context(server))
            urls = [ready() for ready in starting]  # they load side by side
            sampler = VllmServerSampler(urls, stop, max_length=options.max_length, exchange=scratch / "exchange")
            yield stack.enter_context(contextlib.closing(sampler))

    def preferred(self) -> bool:
        return False

    def memory(self, config: RunConfig, shape: Shape, room: Room) -> SamplerMemory:
        return SamplerMemory(0.0, None)

    def remedies(self, config: RunConfig) -> tuple[str, ...]:
        return ()


def _visible(options: SamplerOptions) -> list[dict[str, str]]:
    """The variable that shows each copy of the model its GPUs. Raises UserError when there are too few."""
    import torch

    if options.device() == "cpu":
        return [{}] * options.data_parallel
    count = options.tensor_parallel
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(index) for index in range(torch.cuda.device_count())]
    if len(devices) < options.gpus:
        what = f"{count} x {options.data_parallel} GPUs asked for, {len(devices)} here"
        raise UserError(what, where="--tensor-parallel, --data-parallel")
    parts = (devices[start : start + count] for start in range(0, options.gpus, count))
    return [{"CUDA_VISIBLE_DEVICES": ",".join(part)} for part in parts]


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for processes started inside the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


BACKEND: SamplerBackend = VllmServerBackend()
