"""A stranger's run, study and record name code, and only the caller of a command permits that it is executed."""

import json
import shutil
from pathlib import Path

import pytest

import tepo as tepo_api
from tepo.common.files import content_hash
from tepo.common.schema import Location, read
from tepo.config.run_config import RunConfig
from tepo.formula.row import load_row
from tepo.policy.model.model_location import resolve
from tepo.store.run_id import settings
from tepo_cli.main import app
from tests.support.commands import tepo
from tests.support.runs import SMALL, few_problems
from tests.unit.objectives.own_examples import examples

FEW = [*SMALL, "train.steps=1", "data.benchmarks=[add3]"]
TRUST = "model.trust_remote_code=true"
MODEL = """
with open({mark!r}, "a") as file:
    file.write("model ")
from transformers import Qwen2Config, Qwen2ForCausalLM
class StrangeConfig(Qwen2Config):
    pass
class Strange(Qwen2ForCausalLM):
    config_class = StrangeConfig
"""
FUNCTIONS = examples()["erf"]["functions/erf.py"]
CALLING = "A*erf(w - 1)"
STUDY = """
title: strange
rows: [{{label: A, objective: {objective}, overrides: {words}}}]
scales: {{laptop: {{models: [{model}], seeds: [0], overrides: {few}}}}}
"""
READING = (  # every command that reads a store or a study and executes nothing that they name
    "table strange",
    "figure strange --out figures",
    "report strange --out page.html --results page.md",
    "plan strange --difference 2",
    "records show strange",
    "board",
    "records write strange --out written",
    "ablate strange --dry-run",
    "reproduce strange --dry-run",
    "list",
    "list --watch",
    "responses RUN add3",
    "data regrade RUN",
    "push RUN somebody/it --dry-run",
    "explain grpo --check",
    "explain grpo",
)
EXECUTING = (
    "eval add3 --model RUN",
    "eval add3 --model RUN --dry-run",
    "eval add3 --model package:laptop --model RUN --limit 2",
    "chat RUN",
    "explain RECEIVED",
    "explain tepo --vs RECEIVED",
    "plan strange --store other",
    "ablate strange --store other",
    "ablate functions --store other",
    "reproduce strange --store other",
    "records check strange",
)
OWN = ("train", "model", "data", "doctor")  # named by the caller, or shipped


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: a strange model, Python that lies outside functions/, two studies that name them, a finished run
    of the model, its record, and a copy of it whose objective is of that Python."""
    folder = tmp_path_factory.mktemp("trust")
    few_problems(folder)
    model = folder / "downloads" / "model"
    shutil.copytree(resolve("package:laptop"), model)
    (model / "strange.py").write_text(MODEL.format(mark=str(folder / "executed")))
    config = json.loads((model / "config.json").read_text())
    named = {"AutoConfig": "strange.StrangeConfig", "AutoModelForCausalLM": "strange.Strange"}
    (model / "config.json").write_text(json.dumps(config | {"auto_map": named}))
    (folder / "downloads" / "erf.py").write_text(
        f'with open({str(folder / "executed")!r}, "a") as file:\n    file.write("functions ")\n' + FUNCTIONS
    )
    (folder / "experiments").mkdir()
    for name, words, of in (
        ("strange", [TRUST], model),
        ("functions", [f"objective.functions={folder / 'downloads/erf.py'}", f"objective.J={CALLING}"], "laptop"),
    ):
        study = STUDY.format(objective="grpo_dapo", words=json.dumps(words), model=of, few=json.dumps(FEW))
        (folder / "experiments" / f"{name}.yaml").write_text(study)
    tepo("ablate", "strange", "--trust", cwd=folder, TEPO_PATH=str(folder), HF_HOME=str(folder / "hf"))
    (run,) = (path.parent for path in folder.glob("runs/*/config.json"))
    received = folder / "received" / run.name
    shutil.copytree(run, received)
    saved = json.loads((received / "config.json").read_text())
    assert saved["full"]["model"]["trust_remote_code"] is True
    text = (folder / "downloads" / "erf.py").read_text()
    named = {"functions": {"erf.py": text}, "J": CALLING}
    saved["full"]["objective"] = load_row("grpo_dapo", named).formula.mapping
    # whoever makes such a run calls it after its hash, too
    saved["config"] = settings(read(RunConfig, saved["full"], Location(lambda keys: str(keys))))
    made_of = {key: saved[key] for key in ("recipe", "base", "problems", "config")}
    saved["id"] = content_hash([content_hash(made_of), saved["seed"]])
    (received / "config.json").write_text(json.dumps(saved))
    manifest = json.loads((received / "manifest.json").read_text()) | {"id": saved["id"]}
    del manifest["config_sha256"]
    (received / "manifest.json").write_text(json.dumps(manifest))
    received.rename(received.with_name(saved["id"]))
    (folder / "RUN").write_text(run.name)
    (folder / "RECEIVED").write_text(saved["id"])
    recorded = tepo("records", "write", "strange", cwd=folder, TEPO_PATH=str(folder))
    assert "1 run from the store" in recorded.stdout, recorded.stderr
    return folder


def typed(user: Path, line: str, code: int = 0) -> str:
    """What a command prints on its way to this exit code."""
    executed(user)
    run = (user / "RUN").read_text()
    received = (user / "RECEIVED").read_text()
    words = line.replace("RECEIVED", f"received/{received}").replace("RUN", run).split()
    done = tepo(*words, cwd=user, code=code, TEPO_PATH=str(user), HF_HOME=str(user / "hf"))
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def executed(user: Path) -> str:
    """What was executed since the last look: `model`, `functions`."""
    mark = user / "executed"
    said = mark.read_text() if mark.exists() else ""
    mark.unlink(missing_ok=True)
    return " ".join(sorted(set(said.split())))


def test_every_command_is_tried() -> None:
    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    names |= {group.name for group in app.registered_groups}
    assert names == {line.split()[0] for line in (*READING, *EXECUTING)} | set(OWN)


@pytest.mark.disaster
@pytest.mark.parametrize("line", READING)
def test_what_only_reads_executes_nothing(user: Path, line: str) -> None:
    typed(user, line)
    assert executed(user) == ""


@pytest.mark.disaster
@pytest.mark.parametrize("line", EXECUTING)
def test_strange_code_is_refused_and_not_asked_about(user: Path, line: str) -> None:
    assert "--trust executes it" in typed(user, line, 2)
    assert executed(user) == ""


@pytest.mark.disaster
@pytest.mark.parametrize(
    ("line", "runs", "logged"),
    [
        ("eval add3 --model RUN --limit 2 --trust", "model", "runs/RUN/checkpoints/step_000001: strange.py"),
        ("eval add3 --model downloads/model --limit 2 --trust", "model", "downloads/model: strange.py"),
        ("explain RECEIVED --trust", "functions", "erf.py"),
        ("ablate strange --trust --store other", "model", "executed, as --trust says"),
        ("ablate strange --trust --store other", "", "executes code that comes with the model"),
        ("ablate functions --trust --store other", "functions", "downloads/erf.py"),
        (f"ablate strange --set {TRUST} --store third", "model", ""),
    ],
)
def test_trust_executes_and_says_so(user: Path, line: str, runs: str, logged: str) -> None:
    said = typed(user, line)
    assert executed(user) == runs
    said += "".join(path.read_text() for path in user.glob("other/*/log.txt"))
    assert logged.replace("RUN", (user / "RUN").read_text()) in said.replace("\n", "")


@pytest.mark.disaster
def test_from_python_too(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEPO_PATH", str(user))
    monkeypatch.chdir(user)
    executed(user)
    for study in ("strange", "functions"):
        with pytest.raises(tepo_api.UserError, match="the study names code that is not yours"):
            tepo_api.run(study, store="python", progress=False)
    assert executed(user) == ""
    tepo_api.run("functions", store="python", progress=False, trust=True)
    assert executed(user) == "functions"
    with pytest.raises(tepo_api.UserError, match="not yours"):  # it held for that call alone
        tepo_api.run("functions", store="python2", progress=False)
