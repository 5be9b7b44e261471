"""vLLM servers on other GPUs or nodes behind the sampler's contract.

A server is a stock `vllm serve` in development mode (`serve_command`), nothing of ours runs in it. Prompts are spread
over the servers; new weights travel as one safetensors folder that trainer and servers both see, and each server reads
it through vLLM's own `reload_weights`. The head is written out, so tied models sync too.
"""

import contextlib
import json
import math
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakSet

from safetensors.torch import save_file
from torch import Tensor

from tepo.common import interpreter, signals
from tepo.common.errors import RunFailed, UserError
from tepo.common.files import commit_folder, no_link
from tepo.policy.model.allocator import without_growing
from tepo.sampling.sampler import Job, Response, Sampler, SamplingParams
from tepo.sampling.vllm.http import ANSWER_BYTES, Connections, ask, is_url, not_vllm, socket_url
from tepo.sampling.vllm.response_groups import ResponseGroups, to_response
from tepo.sampling.vllm.vllm_sampler import EngineOptions, check_head, last_error

_Answer: TypeAlias = Future[dict[str, Any]]
_START_SECONDS = 600  # until a server is healthy
_ANY = 1 << 31  # ids of a policy that is not known here
_PARALLEL = 256  # requests in flight per server
_SOCKET = "http"
_LONGEST = 107 - len("/tepo-12345678/") - 36  # bytes of a folder: a socket's path has 107, vLLM's names are UUIDs
_TOKEN_BYTES = 1 << 10  # of an answer: id, text and log-prob of a token
_ROUNDING = 1e-3  # by which a log-prob may be above 0
_SETTLE_SECONDS = 60  # until a server has given up the requests whose connections were cut


def check_servers(urls: Sequence[str]) -> None:
    """Raises UserError when there is no server to ask, or one is not in development mode, RunFailed when one does not
    answer."""
    if not urls:
        fix = "sampler.servers=[http://host:8000], or sampler=vllm"
        raise UserError("no vLLM server is named", where="sampler.servers", fix=fix)
    for url in urls:
        if not is_url(url):
            fix = "http://HOST:PORT, https://HOST, or http+unix:// and the path of a socket with %2F for each slash"
            raise UserError("no URL of a server", where=f"sampler.servers: {url}", fix=fix)
    for url in urls:
        answer = ask(url.rstrip("/"), "/is_sleeping", None)
        if not isinstance(answer.get("is_sleeping"), bool):
            raise not_vllm(json.dumps(answer), url)


def serve_command(
    options: EngineOptions, folder: Path, *, memory: float | None = None, cpu: bool = False
) -> tuple[list[str], dict[str, str]]:
    """Command line and extra environment of a server that `VllmServerSampler` can use. memory: see
    `EngineOptions.arguments`. Development mode opens the weight endpoints to whoever can reach its sockets: they lie in
    `folder`, which nobody else may enter."""
    arguments = options.arguments(without_growing(os.environ), cpu, memory)
    arguments |= {"served_model_name": "policy", "uds": str(folder / _SOCKET)}
    command = interpreter.command("-m", "vllm.entrypoints.openai.api_server")
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            command += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    # between its own processes: sockets there, torch's ports on this machine alone
    environment |= {"VLLM_RPC_BASE_PATH": str(folder), "VLLM_HOST_IP": "127.0.0.1"}
    # Left alone each would start with a thread a core, whatever runs beside it; on a GPU vLLM serves with one
    # (utils/torch_utils.py: set_torch_threads_for_runtime).
    environment |= interpreter.ONE_THREAD
    if cpu:
        environment |= {"TORCHDYNAMO_DISABLE": "1"}
    return command, environment


@contextlib.contextmanager
def local_server(
    options: EngineOptions, *, log: Path, memory: float | None = None, cpu: bool = False, gpus: str | None = None
) -> Iterator[Callable[[], str]]:
    """A server that starts on this machine, for the length of the block, and that this user alone can ask; yields
    what waits for it and gives its URL. gpus: those that it sees, with commas. Raises UserError when it does not come
    up (with the end of its log)."""
    options.check()
    with _private_folder() as folder:
        command, environment = serve_command(options, folder, memory=memory, cpu=cpu)
        # it must not hold its GPU when we are killed
        end_with_us = partial(signals.end_with, os.getpid(), signal.SIGTERM)
        environment |= {} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}
        ours = without_growing(os.environ)  # the server's memory is one large piece
        with open(log, "w", opener=no_link) as sink:
            process = subprocess.Popen(
                command,
                env=interpreter.environment(ours) | environment,
                stdout=sink,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_us,
            )
        try:
            yield partial(_wait_until_healthy, socket_url(folder / _SOCKET), process, log)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder for sockets, which nobody else may enter. A shell removes it when this process closes its end of a pipe,
    or is killed."""
    short = len(os.fsencode(tempfile.gettempdir())) <= _LONGEST
    folder = tempfile.mkdtemp(prefix="tepo-", dir=None if short else "/tmp")
    remover = subprocess.Popen(
        ["sh", "-c", 'read -r end; rm -rf -- "$0"', folder], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield Path(folder)
    finally:
        remover.communicate()


def _wait_until_healthy(url: str, process: subprocess.Popen, log: Path) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(RunFailed):
            ask(url, "/health", None)
            return url
        time.sleep(0.5)
    what = f"the vLLM server did not start: {last_error(log.read_text(errors='replace'))}"
    raise UserError(what, where=str(log), fix="read the log; too little memory is the usual cause")


class VllmServerSampler(Sampler):
    """Sampler over servers started with `serve_command`; they give no log-probs of given tokens without their cache.

    urls: of each, as `tepo.sampling.vllm.http` says. stop_tokens: ids that end a response (kept in it). max_length:
    longest prompt plus response. exchange: a folder on a file system that trainer and servers share. vocabulary: the
    policy has so many ids.
    """

    def __init__(
        self,
        urls: Sequence[str],
        stop_tokens: Sequence[int],
        *,
        max_length: int,
        exchange: Path,
        vocabulary: int = _ANY,
    ):
        check_servers(urls)
        self.vocabulary = vocabulary
        self.urls = [url.rstrip("/") for url in urls]
        self.stop_tokens, self.max_length, self.exchange = list(stop_tokens), max_length, exchange
        self.side_by_side = _PARALLEL * len(urls)
        self.pool = ThreadPoolExecutor(self.side_by_side)
        self.queues: WeakSet[ServerQueue] = WeakSet()

    def start(self, params: SamplingParams) -> "ServerQueue":
        started = ServerQueue(self, params)
        self.queues.add(started)
        return started

    def sync(self, weights: Mapping[str, Tensor]) -> None:
        """Write the weights once, in parts, have every server read them and forget its cached prefixes."""
        check_head(weights)
        target = self.exchange.absolute() / f"{time.time_ns()}"  # a new name: network file systems remember old ones
        with commit_folder(target) as folder:
            write_weights(weights, folder)
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(target)}}
        for request in [self.pool.submit(ask, url, "/collective_rpc", body) for url in self.urls]:
            request.result()
        deadline = time.monotonic() + _SETTLE_SECONDS
        for url in self.urls:
            while not ask(url, "/reset_prefix_cache", {}).get("success", True):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{url} would not reset its prefix cache: a request of someone else is running")
                time.sleep(0.1)
        shutil.rmtree(target)

    def close(self) -> None:
        """Close the connections and remove the exchanged weights; the servers go on."""
        for started in self.queues:
            started.abort()
        self.pool.shutdown(cancel_futures=True)
        shutil.rmtree(self.exchange, ignore_errors=True)


class ServerQueue:
    """`tepo.sampling.sampler.Queue` of requests at the servers, each on a thread and a connection of its own.

    All responses of a job come from one server, which caches the prompt: the one with the fewest in flight.
    """

    def __init__(self, sampler: VllmServerSampler, params: SamplingParams):
        self.sampler, self.params = sampler, params
        self.running: dict[_Answer, _Request] = {}
        self._renew()

    def _renew(self) -> None:
        self.running.clear()
        self.under_way = [0] * len(self.sampler.urls)  # responses at each server
        self.groups = ResponseGroups(self.params)
        self.done: queue.SimpleQueue[_Answer] = queue.SimpleQueue()

    def add(self, jobs: Sequence[Job]) -> None:
        """See `Queue.add`. Raises UserError for a prompt that leaves too little room."""
        self.groups.check(jobs, self.sampler.max_length)
        server = 0
        for job, index in self.groups.begin(jobs):
            if index == job.first:  # of equals the first
                server = min(range(len(self.under_way)), key=self.under_way.__getitem__)
            parameters = self.groups.request(job, index, self.sampler.stop_tokens)
            request = _Request(job.number, index, server)
            body = {
                "model": "policy",
                "prompt": list(job.prompt),
                "return_token_ids": True,
                "skip_special_tokens": False,
                **parameters,
            }
            where = self.sampler.urls[server], "/v1/completions"
            limit = ANSWER_BYTES + _TOKEN_BYTES * (len(job.prompt) + parameters["max_tokens"])
            future = self.sampler.pool.submit(ask, *where, body, request.connections, limit)
            self.under_way[server] += 1
            self.running[future] = request
            future.add_done_callback(self.done.put)

    def finished(self, seconds: float | None = None) -> list[tuple[int, list[Response]]]:
        """See `Queue.finished`. Raises RunFailed when a server is gone, UserError when it refuses a request."""
        end = None if seconds is None else time.monotonic() + seconds
        groups: list[tuple[int, list[Response]]] = []
        while self.running:
            seconds_left = (0 if groups else None) if end is None else max(0, end - time.monotonic())
            try:
                future = self.done.get(timeout=seconds_left)
            except queue.Empty:
                break
            request = self.running.pop(future, None)
            if request:  # it was not given up
                self.under_way[request.server] -= 1
                response = self._read(future.result(), request)
                groups += self.groups.put(request.number, request.index, response)
        return groups

    def _read(self, answer: Mapping[str, Any], request: "_Request") -> Response:
        """The response in an answer. Raises UserError for one that vLLM does not give: it would be trained on."""
        try:
            (choice,) = answer["choices"]
            tokens, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            reason = choice["finish_reason"]
            params, *_ = self.groups.drawn[request.number]
            ids = all(type(token) is int and 0 <= token < self.sampler.vocabulary for token in tokens)
            numbers = all(type(logprob) in (int, float) and -math.inf < logprob <= _ROUNDING for logprob in logprobs)
            ends = reason == "length" or (reason == "stop" and tokens[-1] in {*self.sampler.stop_tokens, *params.stop})
            lengths = 0 < len(tokens) == len(logprobs) <= params.max_new_tokens
            good = ids and numbers and ends and lengths
        except (KeyError, TypeError, ValueError, IndexError):
            good = False
        if not good:
            raise not_vllm(json.dumps(answer), self.sampler.urls[request.server] + "/v1/completions")
        return to_response(tokens, logprobs, reason)

    def drop(self, numbers: Collection[int]) -> None:
        """See `Queue.drop`. A server gives a request up when it sees that its connection is closed."""
        dropped_numbers = set(numbers)
        for future, request in list(self.running.items()):
            if request.number in dropped_numbers:
                self._give_up(future)
        self.groups.drop(dropped_numbers)

    def abort(self) -> None:
        """See `Queue.abort` and `drop`."""
        for future in list(self.running):
            self._give_up(future)
        self._renew()

    def _give_up(self, future: "_Answer") -> None:
        request = self.running.pop(future)
        self.under_way[request.server] -= 1
        future.cancel()
        request.connections.cut()


@dataclass(frozen=True, slots=True)
class _Request:
    """A response in flight."""

    number: int  # of its job
    index: int
    server: int  # its place among the URLs
    connections: Connections = field(default_factory=Connections)  # the one that it has, to cut it


BUCKET = 512 << 20  # bytes


def write_weights(weights: Mapping[str, Tensor], folder: Path, bucket: int = BUCKET) -> None:
    """Write consecutive tensors in safetensors files of at least `bucket` bytes, but for the last one: the full model
    is never in main memory."""
    tensors: dict[str, Tensor] = {}
    size, names = 0, list(weights)
    for name in names:
        value = weights[name].detach().to("cpu").contiguous()
        size += value.nbytes
        if any(value.data_ptr() == other.data_ptr() for other in tensors.values()):
            value = value.clone()  # safetensors refuses shared storage: tied tensors are written twice
        tensors[name] = value
        if size >= bucket or name == names[-1]:
            save_file(tensors, folder / f"model-{len(list(folder.iterdir())):05d}.safetensors")
            tensors, size = {}, 0
