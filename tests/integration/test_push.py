"""A hub on this machine answers what huggingface_hub asks. Uploads go by LFS; Xet, the hub's own, takes its servers."""

import base64
import json
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from tepo.common.paths import PACKAGE
from tepo.config.compose import compose
from tepo.formula.row import row_of
from tepo.jobs.job import RunJob
from tepo.store.run_folder import RunFolder
from tepo.training.run import Run
from tepo_cli.main import main
from tests.support.commands import alone
from tests.support.runs import few_problems, interrupted, small

pytestmark = pytest.mark.disaster

WRITES, READS = "hf_writes", "hf_reads"


class Hub(ThreadingHTTPServer):
    """Repositories, their branches with the files of each commit, and what was uploaded by its SHA-256."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Routes)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.private: dict[str, bool] = {}
        self.commits: dict[tuple[str, str], list[dict[str, bytes]]] = {}
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.broken = ""  # a route that fails


class _Routes(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *words: object) -> None:
        pass

    def _route(self) -> None:
        path = self.path.partition("?")[0]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append(f"{self.command} {path}")
        code, value = self._answered(path, body)
        answer = json.dumps({"error": f"said {code}"} if value is None and code >= 400 else value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _answered(self, path: str, body: bytes) -> tuple[int, object]:
        hub, token = self.server, self.headers.get("Authorization", "").removeprefix("Bearer ")
        if path.startswith("/lfs/") and self.command == "PUT":  # signed addresses take no token
            hub.objects[path.removeprefix("/lfs/")] = body
            return 200, None
        if token not in (WRITES, READS):
            return 401, None
        if hub.broken and hub.broken in path:
            return 400, None
        if self.command == "GET" and (found := re.fullmatch(r"/api/models/([^/]+/[^/]+)", path)):
            there = found[1] in hub.private
            return (200, {"id": found[1], "private": hub.private[found[1]]}) if there else (404, None)
        if token == READS and path != "/api/validate-yaml":
            return 403, None
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            if name in hub.private:
                return 409, {"error": "it is there", "url": f"{hub.url}/{name}"}
            hub.private[name], hub.commits[name, "main"] = asked.get("visibility") == "private", []
            return 200, {"url": f"{hub.url}/{name}"}
        if re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", path):
            objects = json.loads(body)["objects"]
            for one in objects:
                one["actions"] = {"upload": {"href": f"{hub.url}/lfs/{one['oid']}"}}
            return 200, {"transfer": "basic", "objects": objects}
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit|branch)/([^/]+)", path)
        if not found or found[1] not in hub.private:
            return 404, None
        commits = hub.commits.setdefault((found[1], found[3]), [])
        if found[2] == "preupload":
            names = [one["path"] for one in json.loads(body)["files"]]
            modes = [{"path": one, "uploadMode": "lfs" if one.endswith(".safetensors") else "regular"} for one in names]
            return 200, {"files": [one | {"shouldIgnore": False} for one in modes]}
        if found[2] == "commit":
            entries = [(one["key"], one["value"]) for one in map(json.loads, body.splitlines())]
            files = {value["path"]: base64.b64decode(value["content"]) for key, value in entries if key == "file"}
            files |= {value["path"]: hub.objects[value["oid"]] for key, value in entries if key == "lfsFile"}
            commits.append(files)
        return 200, {"commitUrl": f"{hub.url}/{found[1]}/commit/{'c' * 40}", "commitOid": "c" * 40}

    do_GET = do_POST = do_PUT = _route


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", WRITES)
        close_session()
        yield server
        server.shutdown()
        close_session()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run with a score, from a model and a store in folders of this machine."""
    folder = tmp_path_factory.mktemp("somebodys")
    base = folder / "secret-place" / "my-base"
    shutil.copytree(PACKAGE / "assets" / "laptop", base)
    words = ["train.steps=1", "objective=gspo", "objective.high=0.3", "data.benchmarks=[add3]", f"model={base}"]
    words += ["tracking.project=secret-project", "data=laptop", "data.prompt=raw"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEPO_PATH", few_problems(folder)["TEPO_PATH"])
        job = RunJob(Run(small(folder / "runs", *words)), evaluate=True, quiet=True)
        job.measure(job.train() or ())
    return job.folder


Said = Callable[..., tuple[int, str]]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Said:
    """Calls the command. Returns its exit code, and what it says."""

    def call(*words: str | Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["tepo", "push", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        shown = capsys.readouterr()
        return code, " ".join((shown.out + shown.err).split())

    return call


def test_what_is_sent_is_what_the_run_holds(run: RunFolder, hub: Hub, tmp_path: Path) -> None:
    """Through the command in an interpreter of its own, into a private repository and a branch that are not there."""
    environment = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": WRITES, "HF_HUB_OFFLINE": "0"}
    done = alone("push", run.path, "lab/model", "--private", "--revision", "first", **environment)
    assert f"{hub.url}/lab/model/commit/{'c' * 40}" in done.stderr.replace("\n", "")
    assert hub.private == {"lab/model": True}
    assert [len(commits) for commits in hub.commits.values()] == [0, 1]
    (files,) = hub.commits["lab/model", "first"]
    weights = run.checkpoint(1)
    model = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    beside = ["README.md", "objective.yaml", "scores/add3.json", "tepo_config.json"]
    assert sorted(files) == sorted([*model, *beside])
    assert {name: files[name] for name in model} == {name: (weights / name).read_bytes() for name in model}

    kept = json.loads(files["tepo_config.json"])
    assert kept["id"] == run.path.name
    assert kept["full"]["model"]["path"] == "my-base"
    assert not {"store", "tracking"} & set(kept["full"])
    result = run.result("add3")
    assert result
    assert json.loads(files["scores/add3.json"])["accuracy"] == result.accuracy
    front = yaml.safe_load(files["README.md"].decode().split("---")[1])
    (index,) = front["model-index"]
    assert index["results"][0]["metrics"][0]["value"] == round(100 * result.accuracy, 1)
    for name in beside:
        assert not re.search(rb"secret|somebodys|/runs|/root|/home|/tmp", files[name]), name

    (tmp_path / "objective.yaml").write_bytes(files["objective.yaml"])
    given = compose([f"objective={tmp_path / 'objective.yaml'}"]).objective
    assert row_of(given).formula.digest == row_of(run.config()["full"]["objective"]).formula.digest


@pytest.mark.parametrize(
    ("words", "token", "what"),
    [
        (["lab/model"], "", "error: there is no token of the hub on this machine"),
        (["lab/model"], READS, "error: the token may not write there in: lab/model"),
        (["lab/open", "--private"], WRITES, "error: the repository is there, and it is public in: lab/open"),
    ],
)
def test_a_refusal_is_one_sentence(
    words: list[str], token: str, what: str, run: RunFolder, hub: Hub, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.private["lab/open"] = False
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere")
    code, shown = said(run.path, *words)
    assert (code, what in shown) == (2, True), shown
    assert not any(hub.commits.values())


@pytest.mark.parametrize("broken", ["/objects/batch", "/commit/"])
def test_a_failure_on_the_way_leaves_no_half(broken: str, run: RunFolder, hub: Hub, said: Said) -> None:
    hub.broken = broken
    code, shown = said(run.path, "lab/model")
    assert (code, "error: the hub did not take it: " in shown) == (1, True)
    assert not any(hub.commits.values())


def test_an_unfinished_or_damaged_run_is_refused(run: RunFolder, hub: Hub, said: Said, tmp_path: Path) -> None:
    half = interrupted(small(tmp_path / "half"))
    code, shown = said(half.path, "lab/model")
    assert (code, "error: the run is not trained to its end: interrupted" in shown) == (2, True)
    shutil.copytree(run.path, tmp_path / run.path.name)
    file = RunFolder(tmp_path / run.path.name).checkpoint(1) / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    code, shown = said(tmp_path / run.path.name, "lab/model")
    assert (code, "model.safetensors" in shown) == (2, True)
    assert hub.asked == []
