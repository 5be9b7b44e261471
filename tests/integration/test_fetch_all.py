import json
import re
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from tepo.policy.model.model_location import resolve
from tepo.problems.hashes import set_hash
from tepo.problems.problem import Problem
from tests.support.commands import alone
from tests.support.runs import SMALL, write, write_study

pytestmark = [pytest.mark.slow, pytest.mark.disaster]

COMMIT = "5" * 40
ROWS = [{"question": f"{number}+1=", "gold": str(number + 1)} for number in range(20)]


class Hub(BaseHTTPRequestHandler):
    """The hub's answers for files below `root`: `own/NAME/FILE` of a model, `datasets/own/NAME/FILE`; `raw/FILE` has a
    plain URL."""

    root: Path
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        path = self.path.partition("?")[0].strip("/")
        repository, _, file = path.partition(f"/resolve/{COMMIT}/")
        if path.startswith("api/"):
            name, kind = re.fullmatch(r"api/(?:models/)?(.*?)(?:/(tree|revision)/.*)?", path).groups()
            files = (self.root / name).glob("*")
            tree = [{"type": "file", "path": one.name, "size": one.stat().st_size, "oid": "0" * 40} for one in files]
            self._send((tree if kind == "tree" else {"sha": COMMIT, "id": path, "siblings": []}) if tree else None)
        elif file or path.startswith("raw/"):
            there = self.root / repository / file
            self._send(there.read_bytes() if there.is_file() else None)
        else:
            self._send({})

    do_HEAD = do_GET

    def _send(self, what: object) -> None:
        body = what if isinstance(what, bytes) else json.dumps(what).encode()
        self.send_response(404 if what is None else 200)
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{len(body)}"', "Content-Length": str(len(body))}
        for name, value in (headers | ({"X-Error-Code": "EntryNotFound"} if what is None else {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    """With a tiny model, which has a card and weights in another form that nothing loads, and sets of 20 problems."""
    root = tmp_path / "served"
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    for place in ("raw/own.jsonl", "datasets/own/measured/test.jsonl", "datasets/own/trained/train.jsonl"):
        write(root / place, lines)
    shutil.copytree(resolve("package:laptop"), root / "own/tiny")
    write(root / "own/tiny/pytorch_model.bin", "")
    Hub.root, Hub.asked = root, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_what_is_fetched_once_serves_a_study_without_a_network(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{hub.server_port}"
    plain = f"http://localhost:{hub.server_port}/raw/own.jsonl"  # no address of the hub
    problems = [Problem("", row["question"], row["gold"]) for row in ROWS]
    common = {"title": "own", "count": 20, "hash": set_hash(problems), "samples": 1, "temperature": 0}
    fields = {"problem": "question", "answer": "gold"}
    sources = {"plain": {"path": "json", "data_files": [plain], "split": "train"}}
    sources["measured"] = {"path": "own/measured", "revision": COMMIT}
    for name, source in sources.items():
        declared = common | {"max_new_tokens": 8, "dataset": source | {"fields": fields}}
        write(tmp_path / f"evals/{name}.yaml", yaml.safe_dump(declared))
    words = (*SMALL, "train.steps=1", f"model.revision={COMMIT}", "data=own/trained", "data.fields.answer=gold")
    words = (*words, "data.prompt=raw", "data.benchmarks=[plain,measured]")
    write_study(tmp_path, "mine", {"GRPO/DAPO": "grpo_dapo"}, *words, models=["own/tiny"])
    options = ("--store", tmp_path / "runs")
    places = {"TEPO_PATH": str(tmp_path), "HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    fetch = ("model", "fetch", "--all", "mine", *options)
    served = Hub.root / "datasets/own/measured"
    served.rename(tmp_path / "later")
    online = places | {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0"}
    said = alone(*fetch, **online, code=2).stderr
    assert re.search(rf"^own/tiny@{COMMIT}: 0\.\d MB fetched$", said, re.MULTILINE)
    assert re.search("^plain: 20 problems fetched$", said, re.MULTILINE)
    assert "error: not fetched: measured; could not load measured: " in said
    assert not [line for line in Hub.asked if line.startswith("GET") and line.endswith("pytorch_model.bin")]
    (tmp_path / "later").rename(served)
    Hub.asked.clear()
    said = alone(*fetch, **online).stderr
    assert re.search(rf"^own/tiny@{COMMIT}: 0\.\d MB there already$", said, re.MULTILINE)
    assert re.search("^plain: 20 problems there already$", said, re.MULTILINE)
    assert re.search("^measured: 20 problems fetched$", said, re.MULTILINE)
    assert not [line for line in Hub.asked if line.endswith((".safetensors", "own.jsonl")) and line.startswith("GET")]
    hub.shutdown()
    Hub.asked.clear()
    alone("ablate", "mine", *options, **places, HF_ENDPOINT=address, HF_HUB_OFFLINE="1")
    scores = {file.parent.name: json.loads(file.read_bytes()) for file in (tmp_path / "runs").rglob("result.json")}
    assert scores.keys() == {"plain", "measured"}
    assert Hub.asked == []
