"""A person with the wheel installed outside of the checkout, for test_users_day.py."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

_ROOT = Path(__file__).parents[2]
_PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]

_SHELL = """
import importlib, json, os, runpy, sys, tempfile
from tepo.launch.forkserver import _WARM
for name in _WARM:
    importlib.import_module(name)
for line in sys.stdin:
    with tempfile.TemporaryFile("w+") as printed:
        child = os.fork()
        if not child:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            sys.argv = json.loads(line)
            runpy.run_path(sys.argv[0], run_name="__main__")
            sys.exit()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        printed.seek(0)
        print(json.dumps([code, printed.read()]), flush=True)
"""


class User:
    """A person in a folder of their own, with the wheel installed and nothing else of ours in reach. The first command
    starts an interpreter, the others are forked by one that has done the imports."""

    def __init__(self, folder: Path, site: Path):
        self.folder, self.tepo = folder, site / "bin" / "tepo"
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("TEPO_")}
        self.environment |= {"PYTHONPATH": str(site), "TEPO_PATH": ".", "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}
        self.shell: subprocess.Popen[str] | None = None

    @classmethod
    def of_wheel(cls, place: Path) -> "User":
        """Build the wheel, install it below a folder, and begin there in an empty folder."""
        subprocess.run([*_PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", place / "dist", _ROOT], check=True)
        (wheel,) = (place / "dist").glob("*.whl")
        subprocess.run([*_PIP, "install", "--no-deps", "--target", place / "site", wheel], check=True)
        (place / "work").mkdir()
        user = cls(place / "work", place / "site")
        found = user.python("-c", "import tepo, tepo_cli; print(tepo.__file__, tepo_cli.__file__)")
        assert found.count(str(place / "site")) == 2, found
        return user

    def python(self, *words: str) -> str:
        """What a Python program prints."""
        where: Any = {"cwd": self.folder, "env": self.environment, "text": True}
        done = subprocess.run([sys.executable, *words], **where, capture_output=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def leaves(self) -> None:
        """End the process that forks the commands: by the end of its input."""
        if self.shell:
            self.shell.communicate()

    def types(self, command: str, *, code: int = 0) -> str:
        """What a command prints, both streams, when it ends as it should."""
        words = [str(self.tepo), *command.split()]
        returned, printed = self._forked(words) if self.shell else self._alone(words)
        assert returned == code, f"{command}\n{printed}"
        assert "Traceback" not in printed
        return printed

    def _alone(self, words: list[str]) -> tuple[int, str]:
        where: Any = {"cwd": self.folder, "env": self.environment, "text": True}
        out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run([sys.executable, *words], **where, **out, timeout=300, check=False)
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.shell = subprocess.Popen([sys.executable, "-c", _SHELL], **where, **streams)
        return done.returncode, done.stdout

    def _forked(self, words: list[str]) -> tuple[int, str]:
        assert self.shell
        assert self.shell.stdin
        assert self.shell.stdout
        self.shell.stdin.write(json.dumps(words) + "\n")
        self.shell.stdin.flush()
        returned, printed = json.loads(self.shell.stdout.readline())
        return returned, printed

    def writes(self, name: str, rows: Sequence[tuple[str, str]]) -> None:
        lines = [
            json.dumps({"id": number, "problem": problem, "answer": answer})
            for number, (problem, answer) in enumerate(rows)
        ]
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text("\n".join(lines) + "\n")

    def declares(self, name: str, content: dict) -> None:
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(yaml.safe_dump(content, allow_unicode=True))

    def runs(self) -> set[str]:
        return {path.parent.name for path in self.folder.glob("runs/*/manifest.json")}
