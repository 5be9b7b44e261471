"""JSON over HTTP to a server of models, on connections that another thread can cut.

Nothing that a server answers is believed: it has a time and a size, no other host is asked in its place, and what is
not an object of JSON is one sentence. A server is `http://host:port`, `https://host`, or `http+unix://` and the path of
a Unix socket with %2F for each slash.
"""

import contextlib
import http.client
import io
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from tepo.common.errors import RunFailed, UserError

_ANSWER_SECONDS = 3600  # one request, to its end: a long response on a full server
_LOOK_SECONDS = 120  # one without a body, which asks for no work
ANSWER_BYTES = 1 << 20  # of an answer that says little
_AGAIN = "start it again and resume the run; finished steps are kept"
_NO_VLLM = "sampler.servers names vLLM servers, started with VLLM_SERVER_DEV_MODE=1"


def socket_url(path: Path) -> str:
    """The URL of a server that listens on a Unix socket."""
    return f"http+unix://{quote(str(path), safe='')}"


class _UnixConnection(http.client.HTTPConnection):
    """HTTP to the path of a socket."""

    def __init__(self, path: str, timeout: float):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self.path)  # waits where many connect at once; with a timeout set it would fail at once
        self.sock.settimeout(self.timeout)


class _UntilEnd(io.RawIOBase):
    """Bytes that a socket receives, to a point in time: a byte now and then would outlast the timeout of a socket."""

    def __init__(self, received: io.RawIOBase, sock: socket.socket, end: float):
        self.received, self.sock, self.end = received, sock, end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        seconds_left = self.end - time.monotonic()
        if seconds_left <= 0:
            raise TimeoutError("timed out")
        self.sock.settimeout(seconds_left)
        return self.received.readinto(buffer)  # type: ignore[attr-defined, no-any-return]

    def close(self) -> None:
        super().close()
        self.received.close()


class _Answer(http.client.HTTPResponse):
    """An answer that is read to its end before `end`."""

    def __init__(self, sock: socket.socket, *arguments: Any, end: float, **named: Any):
        super().__init__(sock, *arguments, **named)
        self.fp = io.BufferedReader(_UntilEnd(self.fp.detach(), sock, end))


class Connections:
    """Connections in flight. vLLM gives a request up when its connection is cut."""

    def __init__(self) -> None:
        self.lock, self.sockets, self.ended = threading.Lock(), set[socket.socket](), threading.Event()

    def cut(self) -> None:
        """End those in flight and those that are opened later: whoever waits on one gets an OSError or an
        HTTPException."""
        with self.lock:
            self.ended.set()
            for sock in self.sockets:
                with contextlib.suppress(OSError):  # its other side ended it
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)  # TLS's own would take its state from the reader

    @contextlib.contextmanager
    def open(self, url: str, seconds: float = _ANSWER_SECONDS) -> Iterator[http.client.HTTPConnection]:
        """A connection to a server for the length of the block, cut after so many seconds."""
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        unix = parts.scheme == "http+unix"
        opened = _UnixConnection(unquote(parts.netloc), seconds) if unix else kind(parts.netloc, timeout=seconds)
        opened.response_class = partial(_Answer, end=time.monotonic() + seconds)  # type: ignore[assignment]
        with contextlib.closing(opened) as connection:
            connection.connect()
            sock = connection.sock
            with self.lock:
                if self.ended.is_set():
                    raise ConnectionAbortedError("cut before the request")
                self.sockets.add(sock)
            try:
                yield connection
            finally:
                with self.lock:
                    self.sockets.remove(sock)


def is_url(url: str) -> bool:
    """Tell whether a text can be the URL of a server."""
    try:
        parts = urlsplit(url)
        right_form = parts.scheme in ("http", "https", "http+unix") and parts.netloc and "@" not in parts.netloc
        return bool(right_form) and (parts.scheme == "http+unix" or parts.port != 0)
    except ValueError:  # half an IPv6 address, a port that is no number
        return False


@dataclass(frozen=True, slots=True)
class ServerReply:
    """What a server answered. content: one byte more than the limit where there is more."""

    status: int
    content: bytes
    headers: http.client.HTTPMessage

    @property
    def excerpt(self) -> str:
        """Its beginning, on one line."""
        return " ".join(self.content[:300].decode(errors="replace").split())

    def json(self) -> dict[str, Any] | None:
        """The object of JSON in it, None where there is none."""
        try:
            reply = json.loads(self.content) if self.content else {}
        except (ValueError, RecursionError):
            return None
        return reply if isinstance(reply, dict) else None

    def check_no_redirect(self, where: str) -> None:
        """Raises UserError for an answer that names another server."""
        if 300 <= self.status < 400:
            place = self.headers.get("Location", "no place")[:200]
            what = f"the server sends elsewhere ({self.status}), to {place}, which is not followed"
            raise UserError(what, where=where, fix="name that server, if it is yours")


def exchange(
    url: str,
    path: str,
    body: Mapping[str, Any] | None,
    connections: Connections | None = None,
    limit: int = ANSWER_BYTES,
    seconds: float = _ANSWER_SECONDS,
    headers: Mapping[str, str] = {},
) -> ServerReply:
    """What a server answers to JSON (None: to a GET). Raises OSError, HTTPException or ValueError (no name of a host)
    when it does not, or not within so many seconds."""
    data, connections = None if body is None else json.dumps(body), connections or Connections()
    with connections.open(url, seconds) as connection:
        head = {"Content-Type": "application/json", "Connection": "close", **headers}
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may answer, and close, before it has
            # read what it has no use for: head and body are sent one after the other
            connection.request("GET" if data is None else "POST", urlsplit(url + path).path, data, head)
        answer = connection.getresponse()
        content = answer.read(limit + 1)
        if connections.ended.is_set() or (answer.length and len(content) <= limit):  # the second: what is left to come
            raise ConnectionAbortedError("cut before the end of its answer")
        return ServerReply(answer.status, content, answer.headers)


def ask(
    url: str,
    path: str,
    body: Mapping[str, Any] | None,
    connections: Connections | None = None,
    limit: int = ANSWER_BYTES,
) -> dict[str, Any]:
    """JSON in (None: a GET), JSON out, of at most `limit` bytes. Raises RunFailed when the server is gone, too slow or
    fails, UserError when it refuses, or answers what no vLLM server does."""
    seconds = _LOOK_SECONDS if body is None else _ANSWER_SECONDS
    try:
        answer = exchange(url, path, body, connections, limit, seconds)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise RunFailed(f"the vLLM server does not answer: {error}", where=url, fix=_AGAIN) from None
    if answer.status >= 500:  # of an engine that ended, too
        raise RunFailed(f"the vLLM server failed ({answer.status}): {answer.excerpt}", where=url, fix=_AGAIN)
    if answer.status == 404:
        fix = "VLLM_SERVER_DEV_MODE=1 python -m vllm.entrypoints.openai.api_server …"
        raise UserError(f"the server does not know {path}", where=url, fix=fix)
    answer.check_no_redirect(url + path)
    if answer.status != 200:
        what = f"the server refused a request ({answer.status}): {answer.excerpt}"
        raise UserError(what, where=url + path, fix="see the server's log")
    if len(answer.content) > limit:
        raise UserError(f"the server answers with more than {limit:,} bytes", where=url + path, fix=_NO_VLLM)
    reply = answer.json()
    if reply is None:
        raise not_vllm(answer.excerpt, url + path)
    return reply


def not_vllm(shown: str, where: str) -> UserError:
    """The error for an answer that no vLLM server gives."""
    return UserError(f"the server does not answer as vLLM does: {shown[:200]}", where=where, fix=_NO_VLLM)
