"""Requests to a server: what its answers become, and connections that another thread cuts."""

import queue
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tepo.errors import RunFailed, UserError
from tepo.sampling.vllm_http import Connections, ask


class Handler(BaseHTTPRequestHandler):
    """Echoes a POST; /STATUS answers with that status; /slow is silent until its client is gone."""

    def do_GET(self) -> None:
        self.respond(b"")

    def do_POST(self) -> None:
        self.respond(self.rfile.read(int(self.headers["Content-Length"])))

    def respond(self, body: bytes) -> None:
        if self.path == "/slow":
            self.server.waiting.set()  # type: ignore[attr-defined]
            self.server.gone.put(self.connection.recv(1))  # type: ignore[attr-defined]
            return
        name = self.path.strip("/").rpartition("/")[2]
        self.send_response(int(name) if name.isdigit() else 200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.waiting, running.gone = threading.Event(), queue.Queue()  # type: ignore[attr-defined]
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


def url_of(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def test_json_goes_and_comes(server: ThreadingHTTPServer) -> None:
    body = {"prompt": [1, 2], "word": "é"}
    assert ask(url_of(server), "/echo", body) == body
    assert ask(url_of(server), "/echo", None) == {}
    assert ask(url_of(server) + "/behind", "/echo", body) == body


@pytest.mark.parametrize(
    ("path", "error", "word"),
    [
        ("/404", UserError, "does not know /404"),
        ("/400", UserError, r"refused a request \(400\): .*why"),
        ("/500", RunFailed, r"failed \(500\): .*why"),
    ],
)
def test_what_a_server_answers_becomes_an_error(
    server: ThreadingHTTPServer, path: str, error: type[Exception], word: str
) -> None:
    with pytest.raises(error, match=word):
        ask(url_of(server), path, {"why": 1})


def test_a_cut_ends_who_waits_and_who_comes_later(server: ThreadingHTTPServer) -> None:
    connections, raised = Connections(), []

    def wait() -> None:
        with pytest.raises(RunFailed) as error:
            ask(url_of(server), "/slow", {}, connections)
        raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert server.waiting.wait(10)  # type: ignore[attr-defined]
    began = time.monotonic()
    connections.cut()
    waiting.join(10)
    assert len(raised) == 1
    assert server.gone.get(timeout=10) == b""  # type: ignore[attr-defined]  # the server sees the end
    assert time.monotonic() - began < 5
    with pytest.raises(RunFailed, match="cut"):
        ask(url_of(server), "/echo", {}, connections)
    assert ask(url_of(server), "/echo", {"a": 1}, Connections()) == {"a": 1}
