"""`tepo eval` of a model that vLLM's own OpenAI-compatible server serves, beside the same weights here."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer, GenerationConfig

from tests.integration.openai_server import openai_server
from tests.integration.own_model import CHAT, save_family, write_words
from tests.support.commands import OwnSignal, started, tepo
from tests.support.runs import write

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.disaster]
KEY = "secret-0123456789abcdef"
GREEDY = "words:samples1:temperature0:tokens24"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a user, with the benchmark `words` and a model that has a reasoning mode, and generation settings which a
    server takes for those that a request does not say."""
    folder = tmp_path_factory.mktemp("served")
    write(
        folder / "evals/words.yaml",
        "title: Words\ndataset: {path: words.jsonl}\ncount: 40\nprompt: boxed\n"
        "samples: 2\ntemperature: 1.0\nmax_new_tokens: 8192\n",
    )
    write_words(folder / "evals/words.jsonl", seed=1)
    save_family(folder / "model", "qwen2", chat=True)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.chat_template = CHAT + "{% if enable_thinking %}\\boxed{6}{% endif %}"
    tokenizer.save_pretrained(folder / "model")
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    settings = GenerationConfig(do_sample=True, repetition_penalty=5.0, top_k=1, temperature=0.01, **ends)
    settings.save_pretrained(folder / "model")
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    words = ("--api-key", KEY, "--max-model-len", "256", "--no-enable-chunked-prefill")
    with openai_server(folder / "model", "words", *words) as url:
        yield f"openai:{url}#words"


def measured(folder: Path, model: str | Path, *words: str) -> dict[str, list[dict]]:
    """The rows of each benchmark that the command measures, by its name."""
    store = folder / "-".join(["of", Path(model).name[-5:], *words]).replace(":", "_")
    tepo("eval", *words, "--model", model, "--store", store, TEPO_PATH=str(folder), OPENAI_API_KEY=KEY)
    return {path.parent.name: pq.read_table(path).to_pylist() for path in store.rglob("samples.parquet")}


@pytest.mark.parametrize("words", [("--wrap", "base"), ("--thinking", "--limit", "5")])
def test_greedy_rows_are_those_of_the_weights_here(folder: Path, address: str, words: tuple[str, ...]) -> None:
    """By conversations and by texts; whatever the model's files would have a server do."""
    ((name, served),) = measured(folder, address, GREEDY, *words).items()
    here = measured(folder, folder / "model", GREEDY, "--backend", "torch", *words)[name]
    assert len(served) == (5 if "--limit" in words else 40)
    for ours, other in zip(here, served, strict=True):
        assert other.pop("logprob") is None
        assert other.pop("prompt") in ours.pop("prompt")
        del ours["logprob"]
        assert other == ours


def test_each_protocol_reaches_the_server(folder: Path, address: str) -> None:
    """The likeliest token alone is what a greedy response takes; all of them are drawn where nothing is said."""
    names = (GREEDY, "words:top_k1:tokens24", "words:min_p1:tokens24", "words:tokens24")
    rows = measured(folder, address, *names)
    assert set(rows) == set(names)
    greedy = {row["problem"]: row["response"] for row in rows[GREEDY]}
    for name in names[1:3]:
        assert len(rows[name]) == 80
        assert all(row["response"] == greedy[row["problem"]] for row in rows[name])
    drawn = [row["response"] == greedy[row["problem"]] for row in rows["words:tokens24"]]
    assert 0 < sum(drawn) < len(drawn)


def test_a_killed_evaluation_goes_on_and_says_what_is_known(folder: Path, address: str, tmp_path: Path) -> None:
    words = ("eval", "words:samples16:tokens24", "--model", address, "--store", tmp_path / "runs")
    known = {"TEPO_PATH": str(folder), "OPENAI_API_KEY": KEY}
    after_a_part = OwnSignal(signal.SIGKILL, tmp_path, "os.rename */parts/*.parquet", 2)
    started(*words, own_signal=after_a_part, **known).end(code=-signal.SIGKILL)
    (part,) = tmp_path.rglob("parts/*.parquet")
    kept = pq.read_table(part).to_pylist()
    assert 0 < len(kept) < 640
    tepo(*words, **known)
    (place,) = (path.parent for path in tmp_path.rglob("result.json"))
    rows = pq.read_table(place / "samples.parquet").to_pylist()
    assert len(rows) == 640
    stored = {(row["problem"], row["sample"]): row for row in rows}
    assert all(stored[row["problem"], row["sample"]] == row for row in kept)  # a part is in the order of the answers
    task = json.loads((place / "task.json").read_text())
    assert task["policy"] == {"weights": address, "verified": False}
    again = tepo(*words, TEPO_PATH=str(folder))  # finished: the server is not asked
    assert "which weights are behind them was not verified" in again.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
