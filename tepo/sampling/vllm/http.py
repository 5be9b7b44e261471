"""JSON over HTTP to a vLLM server, on connections that another thread can cut.

A server is `http://host:port`, `https://host`, or `http+unix://` and the path of a Unix socket with %2F for each slash.
"""

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from tepo.common.errors import RunFailed, UserError

_ANSWER_SECONDS = 3600  # one request: a long response on a full server
_AGAIN = "start it again and resume the run; finished steps are kept"


def socket_url(path: Path) -> str:
    """The URL of a server that listens on a Unix socket."""
    return f"http+unix://{quote(str(path), safe='')}"


class _UnixConnection(http.client.HTTPConnection):
    """HTTP to the path of a socket."""

    def __init__(self, path: str):
        super().__init__("localhost", timeout=_ANSWER_SECONDS)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self.path)  # waits where many connect at once; with a timeout set it would fail at once
        self.sock.settimeout(self.timeout)


class Connections:
    """Connections in flight. vLLM gives a request up when its connection is cut."""

    def __init__(self) -> None:
        self.lock, self.sockets, self.ended = threading.Lock(), set[socket.socket](), False

    def cut(self) -> None:
        """End those in flight and those that are opened later: whoever waits on one gets an OSError or an
        HTTPException."""
        with self.lock:
            self.ended = True
            for sock in self.sockets:
                with contextlib.suppress(OSError):  # its other side ended it
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)  # TLS's own would take its state from the reader

    @contextlib.contextmanager
    def open(self, url: str) -> Iterator[http.client.HTTPConnection]:
        """A connection to a server for the length of the block."""
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        unix = parts.scheme == "http+unix"
        opened = _UnixConnection(unquote(parts.netloc)) if unix else kind(parts.netloc, timeout=_ANSWER_SECONDS)
        with contextlib.closing(opened) as connection:
            connection.connect()
            sock = connection.sock
            with self.lock:
                if self.ended:
                    raise ConnectionAbortedError("cut before the request")
                self.sockets.add(sock)
            try:
                yield connection
            finally:
                with self.lock:
                    self.sockets.remove(sock)


def ask(url: str, path: str, body: Mapping[str, Any] | None, connections: Connections | None = None) -> dict[str, Any]:
    """JSON in (None: a GET), JSON out. Raises RunFailed when the server is gone or fails, UserError when it refuses."""
    data = None if body is None else json.dumps(body)
    try:
        with (connections or Connections()).open(url) as connection:
            headers = {"Content-Type": "application/json", "Connection": "close"}
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may answer, and close, before it has
                # read what it has no use for: head and body are sent one after the other
                connection.request("GET" if data is None else "POST", urlsplit(url + path).path, data, headers)
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise RunFailed(f"the vLLM server does not answer: {error}", where=url, fix=_AGAIN) from None
    if answer.status >= 500:  # of an engine that ended, too
        raise RunFailed(f"the vLLM server failed ({answer.status}): {text[:300]}", where=url, fix=_AGAIN)
    if answer.status == 404:
        fix = "start it as docs/engines.md shows, with VLLM_SERVER_DEV_MODE=1"
        raise UserError(f"the server does not know {path}", where=url, fix=fix)
    if answer.status != 200:
        what = f"the server refused a request ({answer.status}): {text[:300]}"
        raise UserError(what, where=url + path, fix="see the server's log")
    return json.loads(text) if text else {}
