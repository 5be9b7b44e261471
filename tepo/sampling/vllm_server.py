"""vLLM servers on other GPUs or nodes behind the sampler's contract.

A server is a stock `vllm serve` in development mode (`serve_command`), nothing of ours runs in it. Prompts are spread
over the servers; new weights travel as one safetensors folder that trainer and servers both see, and each server reads
it through vLLM's own `reload_weights`. The head is written out, so tied models sync too.
"""

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from tepo.errors import RunFailed, UserError
from tepo.files import commit_folder
from tepo.sampling.sampler import OnGroup, Response, SamplingParams
from tepo.sampling.vllm_sampler import EngineOptions, check_lengths, last_error, sample_seed, to_response, with_head

_ANSWER_SECONDS = 3600  # one request: a long response on a full server
_START_SECONDS = 600  # until a server is healthy
_PARALLEL = 256  # requests under way per server


def check_named(urls: Sequence[str]) -> None:
    """Raise UserError when there is no server to ask."""
    if not urls:
        raise UserError(
            "no vLLM server is named",
            where="sampler.servers",
            fix="sampler.servers=[http://host:8000], or sampler=vllm",
        )


def serve_command(
    options: EngineOptions,
    *,
    port: int,
    tensor_parallel: int = 1,
    host: str = "127.0.0.1",
    cpu: bool = False,
) -> tuple[list[str], dict[str, str]]:
    """Command line and extra environment of a server that `VllmServerSampler` can use.
    Development mode opens the weight endpoints to whoever can reach the port: keep it on a private network."""
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        options.path,
        "--served-model-name",
        "policy",
    ]
    command += [
        "--host",
        host,
        "--port",
        str(port),
        "--dtype",
        options.dtype,
        "--max-model-len",
        str(options.max_length),
        "--max-num-seqs",
        str(options.max_rows),
    ]
    command += [
        "--tensor-parallel-size",
        str(tensor_parallel),
        "--logprobs-mode",
        "processed_logprobs",
        "--generation-config",
        "vllm",
        "--seed",
        "0",
    ]
    command += ["--revision", options.revision] if options.revision else []
    command += ["--trust-remote-code"] if options.trust_remote_code else []
    environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    if cpu:
        command += ["--enforce-eager", "--kv-cache-memory-bytes", str(256 << 20)]
        environment |= {"TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    return command, environment


@contextlib.contextmanager
def local_server(
    options: EngineOptions, *, port: int, log: Path, tensor_parallel: int = 1, cpu: bool = False
) -> Iterator[str]:
    """A server on this machine for the length of the block; yields its URL. Raises UserError when the port is taken, or
    when it does not come up (with the end of its log)."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise UserError(
                f"port {port} is taken",
                where="the vLLM server",
                fix="choose another port, or end the program that holds it",
            ) from None
    command, environment = serve_command(options, port=port, tensor_parallel=tensor_parallel, cpu=cpu)
    with log.open("w") as sink:
        process = subprocess.Popen(command, env=os.environ | environment, stdout=sink, stderr=subprocess.STDOUT)
    try:
        _wait_until_healthy(f"http://127.0.0.1:{port}", process, log, time.monotonic() + _START_SECONDS)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_healthy(url: str, process: subprocess.Popen, log: Path, deadline: float) -> None:
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        time.sleep(0.5)
    raise UserError(
        f"the vLLM server did not start: {last_error(log.read_text(errors='replace'))}",
        where=str(log),
        fix="read the log; too little memory is the usual cause",
    )


class VllmServerSampler:
    """Implements `tepo.sampling.sampler.Sampler` over servers started with `serve_command`.

    urls: http://host:port of each. stop_tokens: ids that end a response (kept in it). max_length: longest prompt plus
    response. exchange: a folder on a file system that trainer and servers share.
    """

    score = None  # a server gives no log-probs of given tokens without its cache

    def __init__(self, urls: Sequence[str], stop_tokens: Sequence[int], *, max_length: int, exchange: Path):
        check_named(urls)
        self.urls = [url.rstrip("/") for url in urls]
        self.stop_tokens, self.max_length, self.exchange = list(stop_tokens), max_length, exchange
        self.pool = ThreadPoolExecutor(_PARALLEL * len(urls))
        for url in self.urls:
            self._post(url, "/is_sleeping", None)  # there, and in development mode

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        keys: Sequence[int],
        params: SamplingParams,
        *,
        on_group: OnGroup | None = None,
    ) -> list[list[Response]]:
        """Groups of responses; see the protocol.
        All responses of a prompt come from one server, which caches the prompt."""
        check_lengths(prompts, params.max_new_tokens, self.max_length)
        draws = params.n if params.temperature > 0 else 1
        asked = [
            self.pool.submit(
                self._complete,
                self.urls[place % len(self.urls)],
                list(prompt),
                sample_seed(key, index),
                params,
            )
            for place, (prompt, key) in enumerate(zip(prompts, keys, strict=True))
            for index in range(draws)
        ]
        groups = []
        for place in range(len(prompts)):
            groups.append(
                [request.result() for request in asked[place * draws : (place + 1) * draws]] * (params.n // draws)
            )
            if on_group:
                on_group(place, groups[place])
        return groups

    def _complete(self, url: str, prompt: list[int], seed: int, params: SamplingParams) -> Response:
        body = {
            "model": "policy",
            "prompt": prompt,
            "seed": seed,
            "temperature": params.temperature,
            "max_tokens": params.max_new_tokens,
            "logprobs": 0,
            "return_token_ids": True,
            "ignore_eos": True,  # the ids that stop are the ones we were given
            "stop_token_ids": self.stop_tokens,
            "skip_special_tokens": False,
        }
        choice = self._post(url, "/v1/completions", body)["choices"][0]
        return to_response(choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["finish_reason"])

    def sync(self, weights: Mapping[str, Tensor]) -> None:
        """Write the weights once, have every server read them and forget its cached prefixes."""
        tensors: dict[tuple[int, Any], Tensor] = {}
        full = {name: value.detach().to("cpu") for name, value in with_head(weights).items()}
        for name, value in full.items():  # safetensors refuses shared storage: tied ones are written twice
            full[name] = value.clone() if (value.data_ptr(), value.shape) in tensors else value.contiguous()
            tensors[value.data_ptr(), value.shape] = value
        target = self.exchange.absolute() / f"{time.time_ns()}"  # a new name: network file systems remember old ones
        with commit_folder(target) as folder:
            save_file(full, folder / "model.safetensors")
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(target)}}
        for request in [self.pool.submit(self._post, url, "/collective_rpc", body) for url in self.urls]:
            request.result()
        for url in self.urls:
            if not self._post(url, "/reset_prefix_cache", {}).get("success", True):
                raise RuntimeError(f"{url} would not reset its prefix cache: a request of someone else is running")
        shutil.rmtree(target)

    def sleep(self) -> None:
        """The servers' memory is their own."""

    def close(self) -> None:
        """Close the connections and remove the exchanged weights; the servers go on."""
        self.pool.shutdown(cancel_futures=True)
        shutil.rmtree(self.exchange, ignore_errors=True)

    def _post(self, url: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        """JSON in (None: a GET), JSON out. Raises RunFailed when the server is gone, UserError when it refuses."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            reason = error.read().decode(errors="replace")[:300]
            if error.code == 404:
                raise UserError(
                    f"the server does not know {path}",
                    where=url,
                    fix="start it as docs/engines.md shows, with VLLM_SERVER_DEV_MODE=1",
                ) from None
            raise UserError(
                f"the server refused a request ({error.code}): {reason}", where=url + path, fix="see the server's log"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise RunFailed(
                f"the vLLM server does not answer: {error}",
                where=url,
                fix="start it again and resume the run; finished steps are kept",
            ) from None
        return json.loads(text) if text else {}
