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
from tests.support.runs import SMALL, few_problems, write, write_study
from tests.unit.objectives.own_examples import examples

pytestmark = pytest.mark.disaster
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
READING = (  # commands that read a store or a study and execute nothing that they name
    "table strange",
    "figure strange --out figures",
    "report strange --out page.html --results page.md",
    "plan strange --difference 2",
    "records write strange --out written",
    "board",
    "list",
    "ablate strange --dry-run",
    "reproduce strange --dry-run",
    "responses RUN add3",
    "data regrade RUN",
    "push RUN somebody/it --dry-run",
    "explain grpo --check",
)
EXECUTING = (
    "eval add3 --model RUN",
    "eval add3 --model package:laptop --model RUN --limit 2",
    "chat RUN",
    "explain RECEIVED",
    "explain tepo --vs RECEIVED",
    "plan strange --store other",
    "ablate functions --store other",
    "reproduce strange --store other",
    "records check strange",
)
OWN = ("train", "model", "data", "doctor")  # named by the caller, or shipped


class User:
    """A user's folder: a strange model, Python that lies outside functions/, two studies that name them, a finished run
    of the model, its record, and a copy of it whose objective is of that Python."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark, model = folder, folder / "executed", folder / "downloads" / "model"
        self.names: dict[str, str] = {}
        few_problems(folder)
        shutil.copytree(resolve("package:laptop"), model)
        write(model / "strange.py", MODEL.format(mark=str(self.mark)))
        config = json.loads((model / "config.json").read_text())
        named = {"AutoConfig": "strange.StrangeConfig", "AutoModelForCausalLM": "strange.Strange"}
        write(model / "config.json", json.dumps(config | {"auto_map": named}))
        text = f'with open({str(self.mark)!r}, "a") as file:\n    file.write("functions ")\n{FUNCTIONS}'
        functions = write(folder / "downloads" / "erf.py", text)
        calling = [f"objective.functions={functions}", f"objective.J={CALLING}"]
        for name, words, of in (("strange", [TRUST], model), ("functions", calling, "laptop")):
            row = {"objective": "grpo_dapo", "overrides": words}
            write_study(folder, name, {"A": row}, *FEW, models=[str(of)])
        self.types("ablate strange --trust")
        (run,) = (path.parent for path in folder.glob("runs/*/config.json"))
        saved = json.loads((run / "config.json").read_text())
        row = load_row("grpo_dapo", {"functions": {"erf.py": text}, "J": CALLING})
        saved["full"]["objective"] = row.formula.mapping
        # whoever makes such a run calls it after its hash, too
        saved["config"] = settings(read(RunConfig, saved["full"], Location(lambda keys: str(keys))))
        made_of = {key: saved[key] for key in ("recipe", "base", "problems", "config")}
        saved["id"] = content_hash([content_hash(made_of), saved["seed"]])
        self.names = {"RECEIVED": f"received/{saved['id']}", "RUN": run.name}
        shutil.copytree(run, folder / self.names["RECEIVED"])
        manifest = json.loads((run / "manifest.json").read_text()) | {"id": saved["id"]}
        del manifest["config_sha256"]
        write(folder / self.names["RECEIVED"] / "config.json", json.dumps(saved))
        write(folder / self.names["RECEIVED"] / "manifest.json", json.dumps(manifest))
        assert "1 run from the store" in self.types("records write strange")

    def types(self, line: str, code: int = 0) -> str:
        """What a command prints on its way to this exit code."""
        self.executed()
        for name, value in self.names.items():
            line = line.replace(name, value)
        where = {"TEPO_PATH": str(self.folder), "HF_HOME": str(self.folder / "hf")}
        done = tepo(*line.split(), cwd=self.folder, code=code, **where)
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr

    def executed(self) -> str:
        """What was executed since the last look: `model`, `functions`."""
        said = self.mark.read_text() if self.mark.exists() else ""
        self.mark.unlink(missing_ok=True)
        return " ".join(sorted(set(said.split())))


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> User:
    return User(tmp_path_factory.mktemp("trust"))


def test_what_only_reads_executes_nothing_and_the_others_refuse_strange_code(user: User) -> None:
    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    names |= {group.name for group in app.registered_groups}
    assert names == {line.split()[0] for line in (*READING, *EXECUTING)} | set(OWN)  # every command is tried
    for line in READING:
        user.types(line)
        assert user.executed() == "", line
    for line in EXECUTING:
        assert "--trust executes it" in user.types(line, 2), line
        assert user.executed() == "", line


@pytest.mark.parametrize(
    ("line", "runs", "logged"),
    [
        ("eval add3 --model RUN --limit 2 --trust", "model", "runs/RUN/checkpoints/step_000001: strange.py"),
        ("explain RECEIVED --trust", "functions", "erf.py"),
        ("ablate strange --trust --store other", "model", "executed, as --trust says"),
        ("ablate functions --trust --store other", "functions", "downloads/erf.py"),
        (f"ablate strange --set {TRUST} --store third", "model", ""),
    ],
)
def test_trust_executes_and_says_so(user: User, line: str, runs: str, logged: str) -> None:
    said = user.types(line)
    assert user.executed() == runs
    said += "".join(path.read_text() for path in user.folder.glob("other/*/log.txt"))
    assert logged.replace("RUN", user.names["RUN"]) in said.replace("\n", "")


def test_from_python_too(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEPO_PATH", str(user.folder))
    monkeypatch.chdir(user.folder)
    user.executed()
    for study in ("strange", "functions"):
        with pytest.raises(tepo_api.UserError, match="the study names code that is not yours"):
            tepo_api.run(study, store="python", progress=False)
    assert user.executed() == ""
    tepo_api.run("functions", store="python", progress=False, trust=True)
    assert user.executed() == "functions"
    with pytest.raises(tepo_api.UserError, match="not yours"):  # it held for that call alone
        tepo_api.run("functions", store="python2", progress=False)
