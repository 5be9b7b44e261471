"""Models behind vLLM's own OpenAI-compatible server, started as its documents say: `tepo eval` of one beside the same
weights here, and the example of a judge."""

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer, GenerationConfig

from tepo.common import interpreter
from tepo.common.paths import PACKAGE
from tests.integration.own_model import CHAT, make_tokenizer, save_family, save_taught, write_words
from tests.support.commands import free_port, tepo
from tests.support.runs import SMALL, lasting, write

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.disaster]


@contextmanager
def openai_server(folder: Path, name: str, *words: str) -> Iterator[str]:
    """The address, with its `/v1`, of vLLM's own OpenAI-compatible server of the model in a folder under that name."""
    port = free_port()
    words = ("--model", str(folder), "--served-model-name", name, "--port", str(port), "--host", "127.0.0.1", *words)
    known = interpreter.ONE_THREAD | {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCHDYNAMO_DISABLE": "1"}
    command = interpreter.command("-m", "vllm.entrypoints.openai.api_server", *words)
    server = subprocess.Popen([*command, "--dtype", "float32", "--enforce-eager"], env=os.environ | known)
    try:
        while server.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10).close()
                break
            except OSError:
                time.sleep(1)
        assert server.poll() is None
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait()


# an evaluation --------------------------------------------------------------------------------------------------------
KEY = "secret-0123456789abcdef"
GREEDY = "words:samples1:temperature0:tokens24"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a user, with the benchmark `words` and a model that has a reasoning mode, and generation settings which a
    server takes for those that a request does not say."""
    folder = tmp_path_factory.mktemp("served")
    text = "title: Words\ndataset: {path: words.jsonl}\ncount: 40\nprompt: boxed\n"
    write(folder / "evals/words.yaml", text + "samples: 2\ntemperature: 1.0\nmax_new_tokens: 8192\n")
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
    """The likeliest token alone is what a greedy response takes; all of them are drawn where nothing is said. That
    nobody has verified the weights is kept, and no key."""
    names = (GREEDY, "words:top_k1:tokens24", "words:min_p1:tokens24", "words:tokens24")
    rows = measured(folder, address, *names)
    assert set(rows) == set(names)
    greedy = {row["problem"]: row["response"] for row in rows[GREEDY]}
    for name in names[1:3]:
        assert len(rows[name]) == 80
        assert all(row["response"] == greedy[row["problem"]] for row in rows[name])
    drawn = [row["response"] == greedy[row["problem"]] for row in rows["words:tokens24"]]
    assert 0 < sum(drawn) < len(drawn)
    tasks = [json.loads(path.read_bytes()) for path in folder.glob("of-*min_p*/**/task.json")]
    assert [task["policy"] for task in tasks] == [{"weights": address, "verified": False}] * len(names)
    assert not [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


# a judge --------------------------------------------------------------------------------------------------------------
EXAMPLE = PACKAGE.parent / "examples" / "llm_judge"
VERDICT = "Score: 7"


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a model that says `Score: 7`, whatever it is asked."""
    folder = tmp_path_factory.mktemp("judge")
    rubric = "Judge a response by a rubric.\n\nProblem: {0}+{0}=\nRubric: sum\nResponse: {1}"
    asked = [rubric.format(n, 2 * n) for n in range(10, 40)]
    tokenizer = make_tokenizer([*asked, VERDICT], chat=True)
    save_taught(folder, tokenizer, asked, [VERDICT], max_position_embeddings=1024)
    with openai_server(folder, "judge", "--max-model-len", "1024") as url:
        yield url


def test_a_model_behind_an_address_judges_each_response_once(tmp_path: Path, judge: str) -> None:
    """Its rewards are trained on beside another's; what it said is kept for the next run."""
    rows = "".join(f"{n}+{n}=,the sum of two equal numbers\n" for n in range(10, 18))
    (tmp_path / "rows.csv").write_text(f"question,rubric\n{rows}")
    (tmp_path / "brief.py").write_text("def reward(problem, response):\n    return max(0.0, 1 - len(response) / 60)\n")
    rewards = f"data.reward={{judge: {{file: judge}}, brief: {{file: {tmp_path / 'brief.py'}}}}}"
    known = {"TEPO_PATH": str(EXAMPLE), "JUDGE_URL": judge, "JUDGE_MODEL": "judge", "JUDGE_PRICES": "1,2"}
    words = (*SMALL, "data=rows.csv", "data.columns=[rubric]", rewards, "train.steps=1", "train.max_new_tokens=8")
    runs = []
    for store in ("first", "second"):
        tepo("train", *words, f"store={store}", cwd=tmp_path, JUDGE_CACHE=str(tmp_path / "cache"), **known)
        (run,) = (path.parent for path in tmp_path.glob(f"{store}/*/config.json"))
        runs.append(lasting(run)[0])
    first, second = runs
    assert first["reward/judge/mean"] == second["reward/judge/mean"] == pytest.approx(0.7, abs=1e-6)
    assert first["reward/failed"] == second["reward/failed"] == 0
    assert first["reward/judge/asked"] > 0 == second["reward/judge/asked"] == second["reward/judge/usd"]
    assert first["reward/judge/tokens"] / 1e6 < first["reward/judge/usd"] < 2 * first["reward/judge/tokens"] / 1e6
    assert list((tmp_path / "cache").glob("*.json"))
