import queue
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer

import pytest

from tepo.common.errors import RunFailed, UserError
from tepo.sampling.vllm.http import Connections, ask, socket_url


class Handler(BaseHTTPRequestHandler):
    """Echoes a POST; /STATUS answers with that status; /slow is silent until its client is gone; /early answers before
    it has read the body, and closes."""

    def do_GET(self) -> None:
        self.respond(b"")

    def do_POST(self) -> None:
        self.respond(b"{}" if self.path == "/early" else self.rfile.read(int(self.headers["Content-Length"])))

    def respond(self, body: bytes) -> None:
        if self.path == "/slow":
            self.server.waiting.set()  # type: ignore[attr-defined]
            self.server.gone.put(self.connection.recv(1))  # type: ignore[attr-defined]
            return
        name = self.path.strip("/").rpartition("/")[2]
        self.send_response(int(name) if name.isdigit() else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


class UnixServer(ThreadingHTTPServer):
    """The same on the path of a socket."""

    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        TCPServer.server_bind(self)


@pytest.fixture(params=["port", "socket"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    on_path = request.param == "socket"
    kind, address = (UnixServer, str(tmp_path / "a b%")) if on_path else (ThreadingHTTPServer, ("127.0.0.1", 0))
    with kind(address, Handler) as running:  # type: ignore[arg-type]
        running.waiting, running.gone = threading.Event(), queue.Queue()  # type: ignore[attr-defined]
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


def url_of(server: ThreadingHTTPServer) -> str:
    if isinstance(server, UnixServer):
        return socket_url(Path(str(server.server_address)))
    return f"http://127.0.0.1:{server.server_port}"


def test_json_goes_and_comes(server: ThreadingHTTPServer) -> None:
    body = {"prompt": [1, 2], "word": "é"}
    assert ask(url_of(server), "/echo", body) == body
    assert ask(url_of(server), "/echo", None) == {}
    for path, (error, word) in ERRORS.items():
        with pytest.raises(error, match=word):
            ask(url_of(server), path, {"why": 1})
    if not isinstance(server, UnixServer):
        assert ask(url_of(server) + "/behind", "/echo", body) == body


ERRORS = {
    "/404": (UserError, "does not know /404"),
    "/400": (UserError, r"refused a request \(400\): .*why"),
    "/500": (RunFailed, r"failed \(500\): .*why"),
}


def test_a_cut_ends_who_waits_and_who_comes_later(server: ThreadingHTTPServer) -> None:
    connections, raised = Connections(), []

    def wait() -> None:
        with pytest.raises(RunFailed) as error:
            ask(url_of(server), "/slow", {}, connections)
        raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert server.waiting.wait(120)  # type: ignore[attr-defined]
    began = time.monotonic()
    connections.cut()
    waiting.join(120)
    assert len(raised) == 1
    assert server.gone.get(timeout=120) == b""  # type: ignore[attr-defined]  # the server sees the end
    assert time.monotonic() - began < 120  # not the hour that an answer may take
    with pytest.raises(RunFailed, match="cut"):
        ask(url_of(server), "/echo", {}, connections)
    assert ask(url_of(server), "/echo", {"a": 1}, Connections()) == {"a": 1}


def test_more_connect_than_a_socket_lets_wait(tmp_path: Path) -> None:
    answers, url = queue.SimpleQueue[dict](), socket_url(tmp_path / "full")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "full"))
        listener.listen(1)
        listener.settimeout(20)
        threads = [threading.Thread(target=lambda: answers.put(ask(url, "/", None)), daemon=True) for _ in range(9)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)  # all have come, and found no place
        for _ in threads:
            with listener.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    for thread in threads:
        thread.join(120)
    assert answers.qsize() == 9


@pytest.mark.parametrize("server", ["socket"], indirect=True)
def test_a_server_may_answer_before_it_has_read_the_body(server: ThreadingHTTPServer) -> None:
    """As vLLM's does where it has no use for it: the body then meets a closed connection."""
    assert ask(url_of(server), "/early", {"long": "x" * 2**22}) == {}
