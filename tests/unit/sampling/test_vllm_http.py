"""Requests to a vLLM server: how they travel, and what of its answers is believed."""

import json
import math
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

import pytest

from tepo.common.errors import RunFailed, UserError
from tepo.sampling.sampler import SamplingParams
from tepo.sampling.vllm import http
from tepo.sampling.vllm.http import Connections, ask, socket_url
from tepo.sampling.vllm.server_sampler import VllmServerSampler, check_servers


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
    for status, error in ((400, UserError), (500, RunFailed)):
        with pytest.raises(error, match=rf"\({status}\): .*why"):
            ask(url_of(server), f"/{status}", {"why": 1})
    if isinstance(server, UnixServer):  # it may answer before it has read the body, which meets a closed connection
        assert ask(url_of(server), "/early", {"long": "x" * 2**22}) == {}
    else:
        assert ask(url_of(server) + "/behind", "/echo", body) == body


def test_a_cut_ends_who_waits_and_who_comes_later(server: ThreadingHTTPServer) -> None:
    connections = Connections()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(ask, url_of(server), "/slow", {}, connections)
        server.waiting.wait(120)  # type: ignore[attr-defined]
        connections.cut()
        assert isinstance(waiting.exception(120), RunFailed)  # not the hour that an answer may take
    assert server.gone.get(timeout=120) == b""  # type: ignore[attr-defined]  # the server sees the end
    with pytest.raises(RunFailed, match="cut"):
        ask(url_of(server), "/echo", {}, connections)
    assert ask(url_of(server), "/echo", {"a": 1}, Connections()) == {"a": 1}


def test_more_connect_than_a_socket_lets_wait(tmp_path: Path) -> None:
    with ThreadPoolExecutor(9) as pool, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "full"))
        listener.listen(1)
        listener.settimeout(20)
        waiting = [pool.submit(ask, socket_url(tmp_path / "full"), "/", None) for _ in range(9)]
        time.sleep(0.2)  # all have come, and found no place
        for _ in waiting:
            with listener.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        assert [one.result(120) for one in waiting] == [{}] * 9


# answers --------------------------------------------------------------------------------------------------------------
STOP, VOCABULARY, MOST = 1, 50, 4
Send = Callable[[socket.socket], None]


def answer(body: Any, status: int = 200, *headers: str) -> Send:
    """A whole answer: JSON of what is no text."""
    content = (body if isinstance(body, str) else json.dumps(body)).encode()
    head = [f"HTTP/1.1 {status} X", f"Content-Length: {len(content)}", *headers, "", ""]
    return lambda connection: connection.sendall("\r\n".join(head).encode() + content)


def for_ever(connection: socket.socket) -> None:
    """More than is read; the other side closes."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b'{"choices": [' * 10_000)


def drip(connection: socket.socket) -> None:
    """A byte now and then, of a head that has no end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        time.sleep(0.02)
        connection.sendall(b"x")


@contextmanager
def serving(sampled: Send, awake: Send | None = None) -> Iterator[str]:
    """The URL of somebody who answers to the look whether he is awake, and to a request."""

    def attend(connection: socket.socket) -> None:
        with connection:
            head = connection.recv(1 << 20)
            with suppress(OSError):  # the other side has heard enough
                (sampled if head.startswith(b"POST") else awake or answer({"is_sleeping": False}))(connection)

    def serve() -> None:
        with suppress(OSError):  # shut down
            while True:
                threading.Thread(target=attend, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def choice(tokens: Any = (7, STOP), logprobs: Any = (-0.5, -0.25), reason: Any = "stop") -> dict[str, Any]:
    return {"choices": [{"token_ids": tokens, "logprobs": {"token_logprobs": logprobs}, "finish_reason": reason}]}


def sampled(url: str, folder: Path) -> Any:
    given: dict[str, Any] = {"max_length": 16, "exchange": folder / "exchange", "vocabulary": VOCABULARY}
    with closing(VllmServerSampler([url], [STOP], **given)) as sampler:
        return sampler.sample([[3, 4]], [1], SamplingParams(n=1, temperature=1.0, max_new_tokens=MOST))


@pytest.mark.parametrize("good", [choice(), choice([7, 8, 9, 7], [-1, 0, -9999.0, 0.0], "length")])
def test_what_vllm_answers_is_taken(good: dict[str, Any], tmp_path: Path) -> None:
    with serving(answer(good)) as url:
        ((response,),) = sampled(url, tmp_path)
    assert response.tokens.tolist() == list(good["choices"][0]["token_ids"])
    assert response.finished == (good["choices"][0]["finish_reason"] == "stop")


WRONG = {
    "HTML": "<html><body>Log in first</body></html>",
    "deep": "[" * 100_000,
    "unlike lengths": choice([7, 8, STOP]),
    "more tokens than asked for": choice([7] * 5, [-1.0] * 5, "length"),
    "an id that is none": choice([VOCABULARY, STOP]),
    "a negative id": choice([-1, STOP]),
    "NaN": choice(logprobs=[math.nan, -1.0]),
    "a log-prob above 0": choice(logprobs=[0.5, -1.0]),
    "stopped without a stop": choice([7, 8]),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_answer_is_one_sentence(wrong: Any, tmp_path: Path) -> None:
    with serving(answer(wrong)) as url, pytest.raises(UserError, match="does not answer as vLLM does") as caught:
        sampled(url, tmp_path)
    assert len(caught.value.what) < 300


def test_no_other_host_is_asked(tmp_path: Path) -> None:
    asked = []
    with serving(asked.append, asked.append) as other:  # type: ignore[arg-type]
        for status in (301, 307):
            sends = answer("", status, f"Location: {other}/v1/completions")
            with serving(sends) as url, pytest.raises(UserError, match=rf"elsewhere \({status}\), to {other}/v1"):
                sampled(url, tmp_path)
            with serving(sends, sends) as url, pytest.raises(UserError, match="not followed"):
                check_servers([url])
    assert asked == []


def test_an_answer_has_a_size_and_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(for_ever) as url, pytest.raises(UserError, match=r"more than 1,\d+,\d+ bytes"):
        sampled(url, tmp_path)
    monkeypatch.setattr(http, "_ANSWER_SECONDS", 1)
    with serving(drip) as url, pytest.raises(RunFailed, match="does not answer"):
        sampled(url, tmp_path)


@pytest.mark.parametrize("body", ["<html>", {}, {"is_sleeping": "no"}])
def test_who_is_no_server_is_found_before_anything_is_sent(body: Any) -> None:
    with serving(answer(choice()), answer(body)) as url, pytest.raises(UserError, match="as vLLM does"):
        check_servers([url])


@pytest.mark.parametrize("url", ["node1:8000", "file:///etc/passwd", "http://[::1", "http://name:word@node1"])
def test_what_is_no_url_is_not_asked(url: str) -> None:
    with pytest.raises(UserError, match="no URL of a server"):
        check_servers([url])
