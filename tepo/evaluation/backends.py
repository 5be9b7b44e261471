"""What generates in an evaluation: the embedded sampler, vLLM in this process, or vLLM servers over several GPUs."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from tepo.errors import UserError
from tepo.evaluation.backend import Backend
from tepo.policy.load_policy import load_policy
from tepo.policy.location import resolve
from tepo.sampling.sampler import Sampler
from tepo.sampling.torch_sampler import TorchSampler, stop_tokens


def load_tokenizer(path: str, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a model. Raises UserError when it is not there."""
    source = resolve(path)
    try:
        return AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=trust_remote_code)
    except Exception as error:  # transformers raises many kinds
        raise UserError(
            f"no tokenizer: {(str(error).splitlines() or [type(error).__name__])[0]}",
            where=path,
            fix="check the path, the network or HF_HOME",
        ) from error


@contextlib.contextmanager
def open_sampler(path: str, backend: Backend, scratch: Path) -> Iterator[Sampler]:
    """A sampler of the model at `path` (folder, hub id, package:NAME), closed at the end.
    `scratch`: a folder for server logs.

    Raises UserError for settings that this backend does not have, or a model that does not load.
    """
    if backend.resolved_kind() == "torch":
        if backend.tensor_parallel * backend.data_parallel > 1:
            raise UserError(
                "the torch backend uses one device", where="--tensor-parallel, --data-parallel", fix="--backend vllm"
            )
        device = "cuda" if torch.cuda.is_available() else "cpu"
        policy = load_policy(
            path,
            dtype=backend.resolved_dtype(),
            device=device,
            revision=backend.revision,
            trust_remote_code=backend.trust_remote_code,
        )
        with contextlib.closing(TorchSampler(policy.model, policy.tokenizer)) as sampler:
            yield sampler
        return
    source, stop = resolve(path), _stop_tokens(path, backend)
    if backend.tensor_parallel * backend.data_parallel > 1:
        with _servers(source, stop, backend, scratch) as servers:
            yield servers
        return
    from tepo.sampling.vllm_sampler import VllmSampler

    engine = VllmSampler(
        source,
        stop,
        dtype=backend.resolved_dtype(),
        max_length=backend.max_length,
        memory_fraction=backend.memory,
        revision=backend.revision,
        trust_remote_code=backend.trust_remote_code,
    )
    with contextlib.closing(engine):
        yield engine


@contextlib.contextmanager
def _servers(source: str, stop: list[int], backend: Backend, scratch: Path) -> Iterator[Sampler]:
    """One vLLM server a copy of the model, each on GPUs of its own; on a machine without a GPU they share the CPU."""
    from tepo.sampling.vllm_server import VllmServerSampler, local_server

    count, cpu = backend.tensor_parallel, not torch.cuda.is_available()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(index) for index in range(torch.cuda.device_count())]
    if not cpu and len(devices) < count * backend.data_parallel:
        raise UserError(
            f"{count} x {backend.data_parallel} GPUs asked for, {len(devices)} here",
            where="--tensor-parallel, --data-parallel",
        )
    scratch.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        urls = []
        for copy in range(backend.data_parallel):
            own = {} if cpu else {"CUDA_VISIBLE_DEVICES": ",".join(devices[copy * count : (copy + 1) * count])}
            with _environment(**own):
                server = local_server(
                    source,
                    port=_free_port(),
                    log=scratch / f"server_{copy}.log",
                    dtype=backend.resolved_dtype(),
                    max_length=backend.max_length,
                    tensor_parallel=count,
                    cpu=cpu,
                    revision=backend.revision,
                    trust_remote_code=backend.trust_remote_code,
                )
                urls.append(stack.enter_context(server))
        sampler = VllmServerSampler(urls, stop, max_length=backend.max_length, exchange=scratch / "exchange")
        yield stack.enter_context(contextlib.closing(sampler))


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
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


def _stop_tokens(path: str, backend: Backend) -> list[int]:
    """End-of-sequence ids without loading the weights."""
    source = resolve(path)
    try:
        declared = GenerationConfig.from_pretrained(source, revision=backend.revision or "main")
    except OSError:  # the model has none of its own
        config = AutoConfig.from_pretrained(
            source, revision=backend.revision, trust_remote_code=backend.trust_remote_code
        )
        declared = GenerationConfig.from_model_config(config)
    return stop_tokens(
        SimpleNamespace(generation_config=declared), load_tokenizer(path, backend.revision, backend.trust_remote_code)
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
