"""Servers over HTTP that fail, refuse or answer nonsense: vLLM's, whose answers are checked, and served models."""

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

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tepo.common.errors import RunFailed, UserError
from tepo.sampling.sampler import Job, SamplingParams
from tepo.sampling.served import ServedModel, ServedSampler, TextPrompt
from tepo.sampling.vllm import http
from tepo.sampling.vllm.http import Connections, ask, socket_url
from tepo.sampling.vllm.server_sampler import VllmServerSampler, check_servers
from tepo_cli.commands.evaluate import evaluate
from tepo_cli.main import app
from tests.support.commands import free_port
from tests.support.runs import write


class Handler(BaseHTTPRequestHandler):
    """Answers in silence."""

    server: Any

    def send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def running(server: ThreadingHTTPServer) -> Iterator[Any]:
    with server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


class Echo(Handler):
    """Echoes a POST; /STATUS answers with that status; /slow is silent until its client is gone; /early answers before
    it has read the body, and closes."""

    def do_GET(self) -> None:
        self.respond(b"")

    def do_POST(self) -> None:
        self.respond(b"{}" if self.path == "/early" else self.rfile.read(int(self.headers["Content-Length"])))

    def respond(self, body: bytes) -> None:
        if self.path == "/slow":
            self.server.waiting.set()
            self.server.gone.put(self.connection.recv(1))
            return
        name = self.path.strip("/").rpartition("/")[2]
        self.send(int(name) if name.isdigit() else 200, body, {})


class UnixServer(ThreadingHTTPServer):
    """The same on the path of a socket."""

    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        TCPServer.server_bind(self)


@pytest.fixture(params=["port", "socket"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    on_path = request.param == "socket"
    kind, address = (UnixServer, str(tmp_path / "a b%")) if on_path else (ThreadingHTTPServer, ("127.0.0.1", 0))
    with running(kind(address, Echo)) as server:
        server.waiting, server.gone = threading.Event(), queue.Queue()
        yield server


def url_of(server: Any) -> str:
    if isinstance(server, UnixServer):
        return socket_url(Path(str(server.server_address)))
    return f"http://127.0.0.1:{server.server_port}"


def test_json_goes_and_comes(server: Any) -> None:
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


def test_a_cut_ends_who_waits_and_who_comes_later(server: Any) -> None:
    connections = Connections()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(ask, url_of(server), "/slow", {}, connections)
        server.waiting.wait(120)
        connections.cut()
        assert isinstance(waiting.exception(120), RunFailed)  # not the hour that an answer may take
    assert server.gone.get(timeout=120) == b""  # the server sees the end
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
    with serving(asked.append, asked.append) as other:
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


# served models --------------------------------------------------------------------------------------------------------
KEY = "sk-0123456789abcdef"
DRAWN = SamplingParams(n=3, temperature=0.7, max_new_tokens=20, top_p=0.9)
ANSWER = "\\boxed{4}"
SILENCE = "none until its client has gone"


def completion(text: str | None = ANSWER, reason: str = "stop", tokens: Any = 5) -> dict[str, Any]:
    choice = {"finish_reason": reason, "text": text, "message": {"role": "assistant", "content": text}}
    return {"choices": [choice], "usage": {"completion_tokens": tokens}}


class OpenAIServer(ThreadingHTTPServer):
    """Asks for a key and has a model `tiny`. answers: to requests for responses in their order, then `otherwise`; each
    a body, or a status, a body and headers, or None for a connection that is cut."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), OpenAI)
        self.key, self.models = KEY, {"data": [{"id": "tiny", "owned_by": "vllm"}]}
        self.answers: list[Any] = []
        self.otherwise: Any = completion()
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.lock = threading.Lock()

    def handle_error(self, *_: object) -> None: ...  # a client that has gone

    @property
    def word(self) -> str:
        return f"openai:http://127.0.0.1:{self.server_port}/v1#tiny"


class OpenAI(Handler):
    def do_GET(self) -> None:
        known = self.path == "/v1/models"
        self.respond(self.server.models if known else (404, {"detail": "Not Found"}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.bodies.append((self.path, body))
            answer = self.server.answers.pop(0) if self.server.answers else self.server.otherwise
        self.respond(answer)

    def respond(self, answer: Any) -> None:
        if answer == SILENCE:
            self.connection.recv(1)
        if answer in (None, SILENCE):
            return
        status, body, *headers = answer if isinstance(answer, tuple) else (200, answer)
        if (said := self.headers.get("Authorization", "nothing").removeprefix("Bearer ")) != self.server.key:
            status, body, headers = 401, {"error": {"message": f"Incorrect API key provided: {said}"}}, []
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send(status, content, headers[0] if headers else {})


@pytest.fixture
def openai(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with running(OpenAIServer()) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a user, with a benchmark of four questions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path / "own"))
    rows = "".join(json.dumps({"id": f"q{n}", "problem": f"{n}+{n}?", "answer": str(2 * n)}) + "\n" for n in range(4))
    write(tmp_path / "own/evals/sums.jsonl", rows)
    keys = "count: 4\nprompt: boxed\nsamples: 2\ntemperature: 0.6\nmax_new_tokens: 64\n"
    write(tmp_path / "own/evals/sums.yaml", f"title: Sums\ndataset: {{path: sums.jsonl}}\n{keys}")
    return tmp_path


def drawn(openai: OpenAIServer, prompt: TextPrompt, **limits: Any) -> list[Any]:
    """The responses to a prompt, three of them."""
    with closing(ServedSampler(ServedModel.of(openai.word), **limits)) as sampler:
        queue = sampler.start(DRAWN)
        queue.add([Job(7, prompt, 1)])  # type: ignore[arg-type]
        ((number, responses),) = queue.finished()
        assert number == 7
        assert queue.finished() == []
    return responses


def test_what_fails_in_passing_is_asked_again(openai: OpenAIServer) -> None:
    """Until nothing is answered for long."""
    busy = (429, {"error": {"message": "slow down"}}, {"Retry-After": "0.1"})
    openai.answers = [busy, (503, b"<html>", {}), None, (500, {"error": "oh"}), busy]
    responses = drawn(openai, TextPrompt("2+2?", turn=True))
    assert [(response.text, response.length, response.finished) for response in responses] == [(ANSWER, 5, True)] * 3
    assert len(openai.bodies) == 8
    seeds = [body["seed"] for _, body in openai.bodies]
    assert len(set(seeds)) == 3  # a request is made again as it was
    openai.answers = [SILENCE]
    drawn(openai, TextPrompt("2+2?", turn=True), seconds=0.5)
    assert len(openai.bodies) == 8 + 4
    assert {body["seed"] for _, body in openai.bodies[8:]} == set(seeds)
    openai.otherwise = (503, {"error": {"message": f"{KEY} is overloaded"}})
    with pytest.raises(UserError, match="failed 2 times in a row, the last time with: 503 … is overloaded"):
        drawn(openai, TextPrompt("2+2?", turn=True), tries=2)


def test_texts_and_lengths_are_as_the_server_says(openai: OpenAIServer) -> None:
    openai.answers = [completion("no\ud800", "length", 20), completion(None), completion("cut", "content_filter", 0)]
    responses = drawn(openai, TextPrompt("2+2?", turn=True))
    assert {(response.text, response.length, response.finished) for response in responses} == {
        ("no?", 20, False),
        ("", 5, True),
        ("cut", 0, True),
    }


def test_a_request_says_what_its_server_takes(openai: OpenAIServer) -> None:
    drawn(openai, TextPrompt("2+2?", turn=True, thinking=False, system="Be brief."))
    drawn(openai, TextPrompt("2+2=", turn=False))
    (path, turn), (other_path, plain) = openai.bodies[0], openai.bodies[3]
    plain.pop("seed")
    common = {"model": "tiny", "temperature": 0.7, "top_p": 0.9, "max_tokens": 20}
    of_vllm = {"min_p": 0.0, "top_k": 0, "repetition_penalty": 1.0}  # against those of generation_config.json
    assert (path, other_path) == ("/v1/chat/completions", "/v1/completions")
    assert plain == common | of_vllm | {"prompt": "2+2="}
    assert turn.pop("seed") < 1 << 31
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    asked = {"messages": messages, "chat_template_kwargs": {"enable_thinking": False}}
    assert turn == common | of_vllm | asked
    openai.models["data"][0]["owned_by"] = "openai"
    drawn(openai, TextPrompt("2+2=", turn=False))
    assert set(openai.bodies[-1][1]) == {*common, "seed", "prompt"}


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        completion(tokens=-1),
        completion(reason="tool_calls"),
        {"choices": [{"text": 3, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}},
    ],
)
def test_nonsense_is_no_response(openai: OpenAIServer, answer: Any) -> None:
    openai.answers = [answer]  # a server each: what was asked beside it would take the next one's
    with pytest.raises(UserError, match="does not answer as OpenAI's API does"):
        drawn(openai, TextPrompt("2+2=", turn=False))


MODEL = "openai:http://127.0.0.1:{port}/v1#tiny"
ANOTHER = {"models": {"data": [{"id": "tiny", "owned_by": "me"}]}}
MISTAKES: dict[str, tuple[str, dict[str, Any]]] = {  # words of the command, what is another of the server
    "unknown model 'timy'": (MODEL.replace("tiny", "timy"), {}),
    "does not answer: [Errno 111] Connection refused": (MODEL.replace("{port}", str(free_port())), {}),
    "refuses the key in OPENAI_API_KEY (401)": (MODEL, {"key": f"{KEY}wrong"}),
    "the address holds more than a place": (MODEL.replace("/v1", f"/v1?key={KEY}"), {}),
    "no name of an environment variable": (f"{MODEL} --api-key-env {KEY}", {}),
    "sends elsewhere (302)": (MODEL, {"models": (302, {}, {"Location": "http://else"})}),
    "refuses the request (400): too long": (MODEL, {"otherwise": (400, {"error": {"message": "too long"}})}),
    "has no top_k, and this server (me)": (f"{MODEL} sums:top_k20", ANOTHER),
    "--backend and --dtype: its server decides that": (f"{MODEL} --backend torch --dtype float32", {}),
}


@pytest.mark.parametrize("hint", MISTAKES)
def test_a_mistake_is_a_message_and_leaves_nothing(hint: str, openai: OpenAIServer, folder: Path) -> None:
    words, other = MISTAKES[hint]
    vars(openai).update(other)
    command = ["eval", "sums", "--quiet", "--model", *words.format(port=openai.server_port).split()]
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert hint in str(caught.value)
    assert caught.value.exit_code == 2
    assert KEY not in str(caught.value)
    assert [path.name for path in folder.iterdir()] == ["own"]


def test_an_evaluation_that_a_server_ends_goes_on(
    openai: OpenAIServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first questions are kept, and the key is in no file."""
    monkeypatch.setattr(ServedSampler, "side_by_side", 1)
    openai.answers = [completion(), *[completion(reason="length")] * 2, *[completion()] * 2, (400, b"enough")]
    with pytest.raises(UserError, match=r"refuses the request \(400\): enough"):
        evaluate([openai.word], ["sums"], quiet=True)
    asked = len(openai.bodies)
    assert not list(folder.rglob("result.json"))
    evaluate([openai.word], ["sums"], quiet=True)
    assert len(openai.bodies) == asked + 1 + 4  # a token to try, and the questions that were left
    (place,) = (path.parent for path in folder.rglob("result.json"))
    rows = pq.read_table(place / "samples.parquet").to_pylist()
    assert [(row["finish"], row["correct"]) for row in rows[:4]] == [("length", False)] * 2 + [("stop", False)] * 2
    assert json.loads((place / "result.json").read_text())["task"]["policy"]["verified"] is False
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
