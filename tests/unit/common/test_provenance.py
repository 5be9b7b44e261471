import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tepo import __version__
from tepo.common import provenance
from tests.support.commands import python


def git(folder: Path, *words: str) -> str:
    name = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    command = ["git", "-C", str(folder), *name, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def repository(folder: Path) -> Path:
    """A checkout with a package in it; what lies in `venv` is ignored."""
    package = folder / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (folder / ".gitignore").write_text("venv/\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return package


def test_the_commit_of_a_checkout_and_whether_it_was_changed(tmp_path: Path) -> None:
    states = {}
    for number, change in enumerate(("nothing", "beside.txt", "package/more.py", ".gitignore")):
        package = repository(tmp_path / str(number))
        if change != "nothing":
            (package.parent / change).write_text("")
        commit, states[change] = provenance.checkout(package)
        assert commit == git(package, "rev-parse", "HEAD")
    assert [change for change, changed in states.items() if changed] == ["package/more.py", ".gitignore"]


def test_an_installed_package_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the environment lies inside the checkout of another project, whose commit would be a wrong one."""
    inside = repository(tmp_path / "project").parent / "venv" / "package"
    outside = tmp_path / "package"
    for package in (inside, outside):
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        assert provenance.checkout(package) == (None, None)
    bare = repository(tmp_path / "bare")
    monkeypatch.setenv("PATH", str(tmp_path))  # no git here
    assert provenance.checkout(bare) == (None, None)


def test_a_repository_in_the_environment_does_not_mislead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, other = repository(tmp_path / "this"), repository(tmp_path / "other")
    git(other, "commit", "-q", "--allow-empty", "-m", "second")
    commit = git(package, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(other.parent / ".git"))
    assert provenance.checkout(package) == (commit, False)


def test_each_process_adds_a_session(tmp_path: Path) -> None:
    with provenance.recorded(tmp_path, "train"):
        (running,) = provenance.sessions(tmp_path)
        assert (running["what"], running["ended"], running["tepo"]) == ("train", None, __version__)
    with pytest.raises(KeyboardInterrupt), provenance.recorded(tmp_path, "train"):
        raise KeyboardInterrupt
    first, second = provenance.sessions(tmp_path)
    assert {**first, "ended": None} == running
    assert first["started"] <= first["ended"] <= second["started"] <= second["ended"]
    assert [path.name for path in tmp_path.iterdir()] == [provenance.FILE]


@pytest.mark.parametrize("content", ["", '{"sessions": [1]}'])
def test_a_damaged_record_is_begun_anew(content: str, tmp_path: Path) -> None:
    (tmp_path / provenance.FILE).write_text(content)
    assert provenance.sessions(tmp_path) == []
    with provenance.recorded(tmp_path, "evaluate"):
        pass
    assert len(provenance.sessions(tmp_path)) == 1


def test_an_error_is_not_hidden_by_a_record_that_cannot_be_written(tmp_path: Path) -> None:
    @provenance.recorded(tmp_path / "run", "train")
    def block() -> None:
        shutil.rmtree(tmp_path / "run")
        (tmp_path / "run").write_text("a file is in the way")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()


def test_versions_are_read_without_importing_anything() -> None:
    code = "import json, sys; from tepo.common import provenance; facts = provenance.facts()\n"
    code += "print(json.dumps([facts, [name for name in ('torch', 'vllm', 'numpy') if name in sys.modules]]))"
    facts, imported = json.loads(python("-c", code, OMP_NUM_THREADS="3").stdout)
    assert imported == []
    assert version("torch").startswith(facts["torch"])  # which may leave out what it was built for, as +cu130
    assert (facts["python"], facts["threads"], facts["host"]) == (sys.version.split()[0], 3, os.uname().nodename)
    assert facts["cpu"]
    assert isinstance(facts["gpus"], list)
