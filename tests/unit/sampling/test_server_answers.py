import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tepo.common.errors import RunFailed, UserError
from tepo.sampling.sampler import SamplingParams
from tepo.sampling.vllm import http
from tepo.sampling.vllm.server_sampler import VllmServerSampler, check_servers

AWAKE = {"is_sleeping": False}
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


def cut(connection: socket.socket) -> None:
    connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"choices": ')


@contextmanager
def serving(sampled: Send, awake: Send | None = None) -> Iterator[str]:
    """The URL of somebody who answers to the look whether he is awake, and to a request."""

    def attend(connection: socket.socket) -> None:
        with connection:
            head = connection.recv(1 << 20)
            with suppress(OSError):  # the other side has heard enough
                (sampled if head.startswith(b"POST") else awake or answer(AWAKE))(connection)

    def serve() -> None:
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=attend, args=(connection,), daemon=True).start()

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
    "no JSON": "{'choices': 1}",
    "nothing": "",
    "a list": [choice()],
    "deep": "[" * 100_000,
    "no choices": {"object": "error"},
    "none": {"choices": []},
    "two": {"choices": choice()["choices"] * 2},
    "no log-probs": {"choices": [{"token_ids": [7], "logprobs": None, "finish_reason": "stop"}]},
    "unlike lengths": choice([7, 8, STOP]),
    "no tokens": choice([], []),
    "more tokens than asked for": choice([7] * 5, [-1.0] * 5, "length"),
    "texts": choice(["7", "1"]),
    "fractions": choice([7.0, 1.0]),
    "an id that is none": choice([VOCABULARY, STOP]),
    "a negative id": choice([-1, STOP]),
    "truth": choice([True, STOP]),
    "NaN": choice(logprobs=[math.nan, -1.0]),
    "a log-prob above 0": choice(logprobs=[0.5, -1.0]),
    "no log-prob": choice(logprobs=[None, None]),
    "given up": choice(reason="abort"),
    "stopped without a stop": choice([7, 8]),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_answer_is_one_sentence(wrong: Any, tmp_path: Path) -> None:
    with serving(answer(wrong)) as url, pytest.raises(UserError, match="does not answer as vLLM does") as caught:
        sampled(url, tmp_path)
    assert caught.value.where == f"{url}/v1/completions"
    assert len(caught.value.what) < 300


def test_no_other_host_is_asked(tmp_path: Path) -> None:
    asked = []
    with serving(asked.append, asked.append) as other:  # type: ignore[arg-type]
        for status in (301, 302, 307, 308):
            sends = answer("", status, f"Location: {other}/v1/completions")
            with serving(sends) as url, pytest.raises(UserError, match=rf"elsewhere \({status}\), to {other}/v1"):
                sampled(url, tmp_path)
            with serving(sends, sends) as url, pytest.raises(UserError, match="not followed"):
                check_servers([url])
    assert asked == []


def test_an_answer_has_a_size(tmp_path: Path) -> None:
    with serving(for_ever) as url, pytest.raises(UserError, match=r"more than 1,\d+,\d+ bytes"):
        sampled(url, tmp_path)


@pytest.mark.parametrize("slow", [drip, cut])
def test_an_answer_has_an_end(slow: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_ANSWER_SECONDS", 1)
    with serving(slow) as url, pytest.raises(RunFailed, match="does not answer") as caught:
        sampled(url, tmp_path)
    assert caught.value.where == url


@pytest.mark.parametrize("body", ["<html>", {}, {"is_sleeping": "no"}, []], ids=str)
def test_who_is_no_server_is_found_before_anything_is_sent(body: Any) -> None:
    with serving(answer(choice()), answer(body)) as url, pytest.raises(UserError, match="as vLLM does"):
        check_servers([url])


NO_URLS = "node1:8000 //node1 file:///etc/passwd http:// http://[::1 http://name:word@node1 http://node1:99999"


@pytest.mark.parametrize("url", ["", "http+unix://", *NO_URLS.split()])
def test_what_is_no_url_is_not_asked(url: str) -> None:
    with pytest.raises(UserError, match="no URL of a server") as caught:
        check_servers([url])
    assert caught.value.where == f"sampler.servers: {url}"


def test_a_name_that_is_none_is_one_sentence() -> None:
    with pytest.raises(RunFailed, match="does not answer"):
        check_servers([f"http://{'a' * 70}..b:80"])
