"""A study of a user's own, one row and one seed, and commands on the store with its run."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tepo.studies.plan import Unit
from tepo.studies.plan_studies import plan_all
from tepo_cli.main import main
from tests.support.results import finish
from tests.support.runs import write

STUDY = (
    "title: mine\nbaseline: GRPO/DAPO\nrows:\n  - {{label: GRPO/DAPO, objective: grpo_dapo{row}}}\n"
    "scales:\n  laptop: {{models: [laptop], seeds: [0]}}\n"
)
WORDS = ("train.steps=2", "data.benchmarks=[add3]")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEPO_PATH", str(tmp_path / "own"))
    return write(tmp_path / "own" / "experiments" / "mine.yaml", STUDY.format(row="")).parent


def finished_run(store: Path, *words: str, seed: int = 0) -> Unit:
    """The unit of `mine` with this seed, trained and measured as far as files can tell."""
    ((_, (unit,)),) = plan_all(["mine"], "laptop", store=store, overrides=(*WORDS, *words), seeds=[seed])
    finish(unit, 1.0, problems=1)
    return unit


def tree(folder: Path) -> dict[str, bytes | str | None]:
    return {
        str(path): os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


SET = [part for word in WORDS for part in ("--set", word)]
COMMANDS: dict[str, Callable[[Unit], list[str]]] = {
    "train": lambda unit: ["train", *unit.overrides, "--evaluate", "--quiet"],
    "measure": lambda unit: ["eval", "-m", " ".join(["train", *unit.overrides])],
    "eval": lambda unit: ["eval", "-m", unit.id, "add3"],
    "regrade": lambda unit: ["data", "regrade", str(unit.folder.path / "eval" / "add3")],
    "responses": lambda unit: ["responses", unit.id, "add3"],
    "explain": lambda unit: ["explain", unit.id],
    **{name: lambda unit, name=name: [*name.split(), "mine", *SET] for name in ("ablate", "table", "records write")},
    "report": lambda unit: ["report", "mine", *SET, "--out", str(unit.folder.path.parents[1] / "page.html")],
}
Command = Callable[..., tuple[object, str]]


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """A command on this test's store: its exit code and what it said."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["tepo", *words, "--store", str(tmp_path / "store")])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, " ".join("".join(capsys.readouterr()).split())

    return run
