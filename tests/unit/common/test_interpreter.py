"""One way to start Python: children and theirs import nothing because it lies in the current folder."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.training.preflight import check_machine
from tepo.training.run import Run
from tests.support.decoys import executed, lay

ROOT = Path(__file__).parents[3]

IMPORTS = "import random, html, json, token, email, statistics"
BEGIN = f"""
IMPORTS = {IMPORTS!r}
import os, shutil, subprocess, sys, multiprocessing as mp
from multiprocessing import forkserver, resource_tracker, spawn, popen_spawn_posix, popen_forkserver
from pathlib import Path
from tepo.common import interpreter
"""
CHANGED = "before = [list(sys.path), dict(os.environ)]\nshutil.copytree(sys.argv[1], '.', dirs_exist_ok=True)\n"
GRANDCHILD = f"import subprocess, sys; {IMPORTS}; subprocess.run([sys.executable, '-c', '{IMPORTS}'], check=True)"
DOORS = {
    "a child and its own": f"""
subprocess.run(interpreter.command("-c", {GRANDCHILD!r}), env=interpreter.environment(), check=True)""",
    "spawn, the fork server and the resource tracker": """
for kind in ("spawn", "forkserver"):
    with interpreter.settled():
        resource_tracker.ensure_running()
        process = mp.get_context(kind).Process(target=exec, args=(IMPORTS,))
        process.start()
    process.join()
    assert process.exitcode == 0
assert before == [sys.path, dict(os.environ)]""",
    "a grader": """
with Grader(GraderOptions(workers=1)) as grader:
    assert grader.grade([("\\\\sqrt{2}/2", "\\\\boxed{1/\\\\sqrt{2}}")])[0].correct""",
}
MORE = {"a grader": "from tepo.problems.grader import Grader, GraderOptions\n"}


def python(code: str, *words: str | Path, cwd: Path, **variables: str) -> str:
    """What a program prints that is given with -c, as a notebook is: the current folder is first on its path."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    given = {"cwd": cwd, "env": kept | variables, "text": True, "timeout": 120}
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, check=False, **given)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("paths", [None, "{root}:"])
@pytest.mark.parametrize("door", DOORS)
def test_no_decoy_is_executed(door: str, paths: str | None, tmp_path: Path) -> None:
    """The decoys come when the program has begun: what its own start executes is Python's, before any of ours."""
    lay(tmp_path / "decoys", tmp_path / "mark")
    (tmp_path / "work").mkdir()
    variables = {} if paths is None else {"PYTHONPATH": paths.format(root=ROOT)}
    python(BEGIN + MORE.get(door, "") + CHANGED + DOORS[door], tmp_path / "decoys", cwd=tmp_path / "work", **variables)
    assert executed(tmp_path / "mark") == []


def test_the_decoys_bite(tmp_path: Path) -> None:
    lay(tmp_path / "work", tmp_path / "mark")
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    subprocess.run([sys.executable, "-c", IMPORTS], cwd=tmp_path / "work", check=False, capture_output=True, env=kept)
    assert str(tmp_path / "work/random.py") in executed(tmp_path / "mark")


def test_what_pythonpath_names_counts_and_the_package_is_found(tmp_path: Path) -> None:
    """Named folders stay, also the current one; a package that only this process was told of is that of its children,
    and not the installed one."""
    shutil.copytree(ROOT / "tepo/common", tmp_path / "lib/tepo/common")
    (tmp_path / "lib/tepo/__init__.py").write_text("")
    (tmp_path / "work").mkdir()
    (tmp_path / "work/of_his_own.py").write_text("print('named')")
    child = "import tepo, of_his_own; print(tepo.__file__)"
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'lib')!r})\n" + BEGIN
    code += f"subprocess.run(interpreter.command('-c', {child!r}), env=interpreter.environment(), check=True)"
    said = python(code, cwd=tmp_path / "work", PYTHONPATH=f"{tmp_path / 'work'}:")
    assert said.split() == ["named", str(tmp_path / "lib/tepo/__init__.py")]


def test_programs_and_libraries_of_the_current_folder_are_not_found() -> None:
    from tepo.common import interpreter

    given = interpreter.environment({"PATH": ":/usr/bin::/bin:", "LD_LIBRARY_PATH": "", "OWN": "kept"})
    assert (given["PATH"], given["LD_LIBRARY_PATH"], given["OWN"]) == ("/usr/bin:/bin", "", "kept")


def test_nothing_else_starts_python() -> None:
    """No interpreter is named and no process of multiprocessing begun but through `tepo.common.interpreter`."""
    starts = re.compile(r"sys\.executable|get_context\(\"(?!fork\")|ProcessPoolExecutor\((?!2, mp_context)|os\.exec")
    known = {"tepo/common/interpreter.py": 1}
    known |= {"tepo/launch/forkserver.py": 2}  # read by a person: settled, or with the words and variables of a child
    files = [path for folder in ("tepo", "tepo_cli", "perf") for path in (ROOT / folder).rglob("*.py")]
    found = {str(path.relative_to(ROOT)): len(starts.findall(path.read_text())) for path in files}
    assert {path: count for path, count in found.items() if count} == known


def test_on_another_system_nothing_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UserError, match="tepo needs Linux"):
        check_machine(Run(compose([f"store={tmp_path}"])))
