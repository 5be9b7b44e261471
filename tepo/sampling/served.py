"""A model that others serve behind an OpenAI-compatible address: it is asked with text, and gives text.

A name at an address is what its server says of itself. Nobody here sees the weights, the chat template or the end of a
response, so nothing is promised of them. A request that fails in passing (a busy or restarted server, a lost
connection) is made again, as long as the server answers now and then.
"""

import contextlib
import http.client
import logging
import os
import queue
import random
import re
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, cast

from tepo.common.errors import UserError, unknown_name
from tepo.config.own_files import SERVED
from tepo.sampling.sampler import Job, SamplingParams
from tepo.sampling.vllm.http import ANSWER_BYTES, Connections, ServerReply, exchange, is_url
from tepo.sampling.vllm.response_groups import sample_seed

KEY = "OPENAI_API_KEY"  # the environment variable with the key, unless another is named
_FORM = f"{SERVED}http://HOST:PORT/v1#NAME"
_SIDE_BY_SIDE = 64  # requests under way
_ANSWER_SECONDS = 3600  # of one request: a long response on a full server
_LIST_SECONDS = 30
_LIST_BYTES = 16 << 20  # some list hundreds of models
_TOKEN_BYTES = 1 << 8  # of an answer
_SHORTEST, _LONGEST = 0.5, 30.0  # seconds until a request is made again
_TRIES = 10
_PAUSE = 60.0  # the most that a server may ask for
_PASSING = (408, 425, 429)  # beside 5xx
_AGAIN = "the same command goes on where this one ended"


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt for a server with a tokenizer of its own. turn: of a user in a conversation, around which the server
    puts the chat template; else the response goes on with the text. thinking: the template's switch, None: its own.
    system: what stands before a turn."""

    text: str
    turn: bool
    thinking: bool | None = None
    system: str = ""

    @property
    def path(self) -> str:
        """Of its requests, behind the server's address."""
        return "/chat/completions" if self.turn else "/completions"


@dataclass(frozen=True, slots=True)
class TextResponse:
    """One response. length: in tokens, as the server counts them. logprob: no server gives that of a response."""

    text: str
    length: int
    finished: bool  # False when cut at the length limit
    logprob: None = None


class _Passing(Exception):
    """A request failed, and may not fail again. seconds: the server wants it no earlier."""

    def __init__(self, reason: str, seconds: float = 0.0):
        super().__init__(reason)
        self.seconds = seconds


@dataclass(frozen=True)
class ServedModel:
    """A model by its address and its name there. key: of the server, which is in no message, file or identity."""

    url: str
    model: str
    key: str = field(default="", repr=False, compare=False)
    variable: str = field(default=KEY, compare=False)

    @classmethod
    def of(cls, word: str, variable: str | None = None) -> "ServedModel":
        """The model that `openai:URL#NAME` names. variable: the environment variable with the key of its server, by
        default OPENAI_API_KEY where it is set. Raises UserError for what is no such word, and for a key that can be
        none; quotes nothing that may be one."""
        url, _, model = word.removeprefix(SERVED).partition("#")
        if "@" in url or "?" in url:
            what = "the address holds more than a place, and it is stored with the results"
            raise UserError(what, where="--model", fix=f"{_FORM}, and the key in the environment variable {KEY}")
        if not is_url(url):
            raise UserError("no URL of a server", where=f"--model {word}", fix=_FORM)
        if variable is not None and not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", variable):
            what = "that is no name of an environment variable"
            raise UserError(what, where="--api-key-env", fix=f"export {KEY}=…, and leave the option out")
        key = os.environ.get(variable or KEY, "").strip()
        if variable is not None and not key:
            raise UserError("that environment variable is not set", where="--api-key-env", fix="export NAME=…")
        if not re.fullmatch("[!-~]*", key):
            what = "the key has blanks or letters that no key has"
            raise UserError(what, where=f"the environment variable {variable or KEY}", fix="copy it again")
        return cls(url.rstrip("/"), model, key, variable or KEY)

    @property
    def name(self) -> str:
        """Its identity in stored results."""
        return f"{SERVED}{self.url}#{self.model}"

    @property
    def path(self) -> str:
        return self.name

    def entry(self) -> dict[str, Any]:
        """The model in the server's list. `owned_by` is often the kind of server, such as vllm. Raises UserError for a
        server that does not answer, refuses the key, or does not have the model."""
        try:
            reply = self.ask("/models", None, limit=_LIST_BYTES)
        except _Passing as error:
            fix = "start it, or correct the address; most end with /v1"
            raise UserError(f"the server does not answer: {error}", where=self.url, fix=fix) from None
        models = reply.get("data")
        entries = [model for model in models if isinstance(model, dict)] if isinstance(models, list) else []
        if not entries:
            raise self.garbage(str(reply), "/models")
        named = {str(model.get("id")): model for model in entries}
        if self.model not in named:
            raise unknown_name("model", self.model, named, where=f"{self.url} ({_FORM})")
        return named[self.model]

    def ask(
        self,
        path: str,
        body: Mapping[str, Any] | None,
        connections: Connections | None = None,
        limit: int = ANSWER_BYTES,
        seconds: float = _LIST_SECONDS,
    ) -> dict[str, Any]:
        """The server's answer to one request (None: a GET). Raises _Passing where it may be made again, UserError where
        the server refuses it, or answers what no such server does."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            answer = exchange(self.url, path, body, connections, limit, seconds, headers)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _Passing(self._without_key(str(error) or type(error).__name__)) from None
        status, said, where = answer.status, self._said(answer), self.url + path
        if status in _PASSING or status >= 500:
            after = answer.headers.get("Retry-After", "")
            raise _Passing(f"{status} {said}", float(after) if re.fullmatch(r"\d{1,6}(\.\d+)?", after) else 0.0)
        if status in (401, 403):
            what = f"the server refuses the key in {self.variable}" if self.key else "the server asks for a key"
            fix = f"export {KEY}=…, or name another variable: --api-key-env NAME"
            raise UserError(f"{what} ({status}): {said}", where=where, fix=fix)
        answer.check_no_redirect(where)
        if status == 404 and body is None:
            what = f"no OpenAI-compatible server there: it does not know {path} (404)"
            raise UserError(what, where=self.url, fix=f"the address with its path: {_FORM}")
        if not 200 <= status < 300:
            fix = "a benchmark, protocol or number that it takes (NAME:tokensN), or another server"
            raise UserError(f"the server refuses the request ({status}): {said}", where=where, fix=fix)
        reply = answer.json() if len(answer.content) <= limit else None
        if reply is None:
            raise self.garbage(said, path)
        return reply

    def _said(self, answer: ServerReply) -> str:
        """The server's words about an error, or the beginning of its answer."""
        error = (answer.json() or {}).get("error")
        message = error.get("message") if isinstance(error, dict) else error
        return self._without_key(" ".join(message.split())[:500] if isinstance(message, str) else answer.excerpt)

    def _without_key(self, text: str) -> str:
        return text.replace(self.key, "…") if self.key else text

    def garbage(self, shown: str, path: str) -> UserError:
        """The error for an answer that no such server gives."""
        what = f"the server does not answer as OpenAI's API does: {self._without_key(shown)[:200]}"
        return UserError(what, where=self.url + path, fix=f"the address of such a server: {_FORM}")


class ServedSampler:
    """Text from a served model. Evaluation uses it as it does a `Sampler`, but a prompt is a `TextPrompt`, and a
    response a `TextResponse`, which its server draws as it likes from the seed. tries: of a request, while no other is
    answered. seconds: for one response. Raises UserError as `ServedModel.entry` does."""

    side_by_side = _SIDE_BY_SIDE

    def __init__(self, model: ServedModel, tries: int = _TRIES, seconds: float = _ANSWER_SECONDS):
        self.model, self.tries, self.seconds, entry = model, tries, seconds, model.entry()
        self.parts = {"server": str(entry.get("owned_by"))}
        self.vllm = self.parts["server"] == "vllm"
        self.room = entry.get("max_model_len")  # vLLM's, in tokens
        self.pool = ThreadPoolExecutor(self.side_by_side)
        self.queues = list[ServedQueue]()
        self.lock, self.answered = threading.Lock(), 0  # requests so far
        self.warned = -1  # how many they were at the last warning

    def start(self, params: SamplingParams) -> "ServedQueue":
        self.queues.append(ServedQueue(self, params))
        return self.queues[-1]

    def close(self) -> None:
        """Give up what is under way."""
        for started in self.queues:
            started.abort()
        self.pool.shutdown(cancel_futures=True)

    def check(self, prompt: TextPrompt, params: SamplingParams) -> None:
        """Ask for one token. Raises UserError where the server cannot be asked so."""
        extras = {"min_p": params.min_p > 0, "top_k": params.top_k > 0, "thinking": prompt.thinking is not None}
        if not self.vllm and (beyond := [f"no {name}" for name, needed in extras.items() if needed]):
            what = f"OpenAI's API has {' and '.join(beyond)}, and this server ({self.parts['server']}) is not known to"
            fix = "another protocol, numbers without it (NAME:top_k0:min_p0, no --thinking), or a server of vLLM's"
            raise UserError(f"{what} have more: it might ignore that", where=self.model.url, fix=fix)
        if isinstance(self.room, int) and params.max_new_tokens >= self.room:
            what = f"a response may have {params.max_new_tokens:,} tokens, and the server has {self.room:,} for it and"
            raise UserError(f"{what} its prompt", where=self.model.url, fix="NAME:tokensN, with fewer")
        self.answer(prompt, replace(params, n=1, max_new_tokens=1), 0, Connections())

    def answer(self, prompt: TextPrompt, params: SamplingParams, seed: int, connections: Connections) -> TextResponse:
        """A response. Raises UserError when the server refuses the request, answers nonsense, or fails too often in a
        row."""
        body, limit = self._body(prompt, params, seed), ANSWER_BYTES + _TOKEN_BYTES * params.max_new_tokens
        failures, answered = 0, self.answered
        while True:
            try:
                reply = self.model.ask(prompt.path, body, connections, limit, self.seconds)
            except _Passing as error:
                failures, answered = failures + 1 if answered == self.answered else 1, self.answered
                if not connections.ended.is_set():
                    self._endure(error, failures)
                pause = min(_SHORTEST * 2 ** (failures - 1), _LONGEST) * random.uniform(0.5, 1)  # not all at once
                if connections.ended.wait(max(pause, min(error.seconds, _PAUSE))):
                    raise UserError("given up before an answer", where=self.model.url) from None
            else:
                with self.lock:
                    self.answered += 1
                return self._read(reply, prompt)

    def _endure(self, error: _Passing, failures: int) -> None:
        """Raises UserError when a request has failed too often."""
        if failures >= self.tries:
            what = f"the server failed {failures} times in a row, the last time with: {error}"
            raise UserError(what, where=self.model.url, fix=_AGAIN) from None
        with self.lock:
            first, self.warned = self.warned != self.answered, self.answered
        if first:
            logging.getLogger(__name__).warning("%s: %s; requests are made again", self.model.url, error)

    def _body(self, prompt: TextPrompt, params: SamplingParams, seed: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model.model,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "max_tokens": params.max_new_tokens,
            "seed": seed,
        }
        if self.vllm:  # said even where they change nothing: it takes defaults from the model's generation_config.json
            body |= {"min_p": params.min_p, "top_k": params.top_k, "repetition_penalty": 1.0}
        if not prompt.turn:
            return body | {"prompt": prompt.text}
        if prompt.thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": prompt.thinking}
        told = [{"role": "system", "content": prompt.system}] if prompt.system else []
        return body | {"messages": [*told, {"role": "user", "content": prompt.text}]}

    def _read(self, reply: Mapping[str, Any], prompt: TextPrompt) -> TextResponse:
        """The response in an answer. Raises UserError for one that is none: it would be graded."""
        with contextlib.suppress(KeyError, TypeError, ValueError):
            (choice,) = reply["choices"]
            text = choice["message"]["content"] if prompt.turn else choice["text"]
            text = "" if text is None and prompt.turn else text  # all of it was reasoning, which the server keeps apart
            reason, length = choice["finish_reason"], reply["usage"]["completion_tokens"]
            ends = reason in ("stop", "length", "content_filter")
            if isinstance(text, str) and ends and type(length) is int and 0 <= length < 1 << 31:
                return TextResponse(text.encode(errors="replace").decode(), length, reason != "length")
        raise self.model.garbage(str(reply), prompt.path)


class ServedQueue:
    """`tepo.sampling.sampler.Queue` of requests at a server, each on a thread and a connection of its own."""

    def __init__(self, sampler: ServedSampler, params: SamplingParams):
        self.sampler, self.params = sampler, params
        self._renew()

    def _renew(self) -> None:
        self.connections = Connections()
        self.running: dict[Future[TextResponse], tuple[int, int]] = {}  # number of a group, and index in it
        self.groups: dict[int, dict[int, TextResponse]] = {}  # by index, of those that are not complete
        self.sizes: dict[int, int] = {}
        self.done: queue.SimpleQueue[Future[TextResponse]] = queue.SimpleQueue()

    def add(self, jobs: Sequence[Job]) -> None:
        """See `Queue.add`."""
        for job in jobs:
            params = job.params or self.params
            self.groups[job.number], self.sizes[job.number] = {}, params.n
            for index in range(params.n):
                seed = sample_seed(job.key, index) % (1 << 31)  # more does not fit into every server's
                prompt = cast(TextPrompt, job.prompt)
                future = self.sampler.pool.submit(self.sampler.answer, prompt, params, seed, self.connections)
                self.running[future] = job.number, index
                future.add_done_callback(self.done.put)

    def finished(self, seconds: float | None = None) -> list[tuple[int, list[TextResponse]]]:
        """See `Queue.finished`. Raises UserError as `ServedSampler.answer` does."""
        end = None if seconds is None else time.monotonic() + seconds
        complete: list[tuple[int, list[TextResponse]]] = []
        while self.running:
            try:
                left = (0 if complete else None) if end is None else max(0, end - time.monotonic())
                future = self.done.get(timeout=left)
            except queue.Empty:
                break
            number, index = self.running.pop(future)
            group = self.groups[number]
            group[index] = future.result()
            if len(group) == self.sizes[number]:
                complete.append((number, [group[place] for place in sorted(group)]))
                del self.groups[number], self.sizes[number]
        return complete

    def abort(self) -> None:
        """See `Queue.abort`. A server gives a request up when it sees that its connection is closed."""
        self.connections.cut()
        for future in self.running:
            future.cancel()
        self._renew()
