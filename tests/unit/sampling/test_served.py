"""A served model whose server fails, refuses or answers nonsense; vLLM's own is asked in test_eval_served.py."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tepo.common.errors import UserError
from tepo.sampling.sampler import Job, SamplingParams
from tepo.sampling.served import ServedModel, ServedSampler, TextPrompt
from tepo_cli.commands.evaluate import evaluate
from tepo_cli.main import app
from tests.support.commands import free_port
from tests.support.runs import write

KEY = "sk-0123456789abcdef"
PARAMS = SamplingParams(n=3, temperature=0.7, max_new_tokens=20, top_p=0.9)
ANSWER = "\\boxed{4}"
SILENCE = "none until its client has gone"


def completion(text: str | None = ANSWER, reason: str = "stop", tokens: Any = 5) -> dict[str, Any]:
    choice = {"finish_reason": reason, "text": text, "message": {"role": "assistant", "content": text}}
    return {"choices": [choice], "usage": {"completion_tokens": tokens}}


class Server(ThreadingHTTPServer):
    """Asks for a key and has a model `tiny`. answers: to requests for responses in their order, then `otherwise`; each
    a body, or a status, a body and headers, or None for a connection that is cut."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.key, self.models = KEY, {"data": [{"id": "tiny", "owned_by": "vllm"}]}
        self.answers: list[Any] = []
        self.otherwise: Any = completion()
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.lock = threading.Lock()

    def handle_error(self, *_: object) -> None: ...  # a client that has gone

    @property
    def word(self) -> str:
        return f"openai:http://127.0.0.1:{self.server_port}/v1#tiny"


class Handler(BaseHTTPRequestHandler):
    server: Server

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
        self.send_response(status)
        for name, value in (headers[0] if headers else {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with Server() as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


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


def drawn(server: Server, prompt: TextPrompt, **limits: Any) -> list[Any]:
    """The responses to a prompt, three of them."""
    with closing(ServedSampler(ServedModel.of(server.word), **limits)) as sampler:
        queue = sampler.start(PARAMS)
        queue.add([Job(7, prompt, 1)])  # type: ignore[arg-type]
        ((number, responses),) = queue.finished()
        assert number == 7
        assert queue.finished() == []
    return responses


def test_what_fails_in_passing_is_asked_again(server: Server) -> None:
    """Until nothing is answered for long."""
    busy = (429, {"error": {"message": "slow down"}}, {"Retry-After": "0.1"})
    server.answers = [busy, (503, b"<html>", {}), None, (500, {"error": "oh"}), busy]
    responses = drawn(server, TextPrompt("2+2?", turn=True))
    assert [(response.text, response.length, response.finished) for response in responses] == [(ANSWER, 5, True)] * 3
    assert len(server.bodies) == 8
    seeds = [body["seed"] for _, body in server.bodies]
    assert len(set(seeds)) == 3  # a request is made again as it was
    server.answers = [SILENCE]
    drawn(server, TextPrompt("2+2?", turn=True), seconds=0.5)
    assert len(server.bodies) == 8 + 4
    assert {body["seed"] for _, body in server.bodies[8:]} == set(seeds)
    server.otherwise = (503, {"error": {"message": f"{KEY} is overloaded"}})
    with pytest.raises(UserError, match="failed 2 times in a row, the last time with: 503 … is overloaded"):
        drawn(server, TextPrompt("2+2?", turn=True), tries=2)


def test_texts_and_lengths_are_as_the_server_says(server: Server) -> None:
    server.answers = [completion("no\ud800", "length", 20), completion(None), completion("cut", "content_filter", 0)]
    responses = drawn(server, TextPrompt("2+2?", turn=True))
    assert {(response.text, response.length, response.finished) for response in responses} == {
        ("no?", 20, False),
        ("", 5, True),
        ("cut", 0, True),
    }


def test_a_request_says_what_its_server_takes(server: Server) -> None:
    drawn(server, TextPrompt("2+2?", turn=True, thinking=False, system="Be brief."))
    drawn(server, TextPrompt("2+2=", turn=False))
    (path, turn), (other_path, plain) = server.bodies[0], server.bodies[3]
    plain.pop("seed")
    common = {"model": "tiny", "temperature": 0.7, "top_p": 0.9, "max_tokens": 20}
    of_vllm = {"min_p": 0.0, "top_k": 0, "repetition_penalty": 1.0}  # against those of generation_config.json
    assert (path, other_path) == ("/v1/chat/completions", "/v1/completions")
    assert plain == common | of_vllm | {"prompt": "2+2="}
    assert turn.pop("seed") < 1 << 31
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    asked = {"messages": messages, "chat_template_kwargs": {"enable_thinking": False}}
    assert turn == common | of_vllm | asked
    server.models["data"][0]["owned_by"] = "openai"
    drawn(server, TextPrompt("2+2=", turn=False))
    assert set(server.bodies[-1][1]) == {*common, "seed", "prompt"}


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        completion(tokens=-1),
        completion(reason="tool_calls"),
        {"choices": [{"text": 3, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}},
    ],
)
def test_nonsense_is_no_response(server: Server, answer: Any) -> None:
    server.answers = [answer]  # a server each: what was asked beside it would take the next one's
    with pytest.raises(UserError, match="does not answer as OpenAI's API does"):
        drawn(server, TextPrompt("2+2=", turn=False))


MODEL = "openai:http://127.0.0.1:{port}/v1#tiny"
ANOTHER = {"models": {"data": [{"id": "tiny", "owned_by": "me"}]}}
WRONG: dict[str, tuple[str, dict[str, Any]]] = {  # words of the command, what is another of the server
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


@pytest.mark.parametrize("hint", WRONG)
def test_a_mistake_is_a_message_and_leaves_nothing(hint: str, server: Server, folder: Path) -> None:
    words, other = WRONG[hint]
    vars(server).update(other)
    command = ["eval", "sums", "--quiet", "--model", *words.format(port=server.server_port).split()]
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert hint in str(caught.value)
    assert caught.value.exit_code == 2
    assert KEY not in str(caught.value)
    assert [path.name for path in folder.iterdir()] == ["own"]


def test_an_evaluation_that_a_server_ends_goes_on(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first questions are kept, and the key is in no file."""
    monkeypatch.setattr(ServedSampler, "side_by_side", 1)
    server.answers = [completion(), *[completion(reason="length")] * 2, *[completion()] * 2, (400, b"enough")]
    with pytest.raises(UserError, match=r"refuses the request \(400\): enough"):
        evaluate([server.word], ["sums"], quiet=True)
    asked = len(server.bodies)
    assert not list(folder.rglob("result.json"))
    evaluate([server.word], ["sums"], quiet=True)
    assert len(server.bodies) == asked + 1 + 4  # a token to try, and the questions that were left
    (place,) = (path.parent for path in folder.rglob("result.json"))
    rows = pq.read_table(place / "samples.parquet").to_pylist()
    assert [(row["finish"], row["correct"]) for row in rows[:4]] == [("length", False)] * 2 + [("stop", False)] * 2
    assert json.loads((place / "result.json").read_text())["task"]["policy"]["verified"] is False
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
