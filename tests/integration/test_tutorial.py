"""docs/tutorial.md, followed from an installed wheel, outside of the checkout: its files are written in an empty
folder, its commands run in order, and what they print is compared with what the page shows.

`python -m tests.integration.test_tutorial` prints each difference and ends with exit code 1 where there is one.
Numbers, ids, verdicts and what a policy answered differ from one kind of CPU to another, so they are masked; what is
read from records is compared as it is. Words are compared, not lines: a wider number wraps a note elsewhere. A line `…`
stands for any lines. An id on the page stands for the one that was printed in its place, also in what follows.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.runs import write

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
LEFT_OUT = "…"
_BLOCK = re.compile(r"(?:^`(?P<file>[\w./]+)`:\n\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_ID = re.compile(r"\b[0-9a-f]{12}\b")
_MASKS = [
    (r"[\u2500-\u257f]+", " "),  # frames of tables, and bars
    (r"\(p [=<] \.\d+\)", "(p)"),
    (r"\b(?:better|worse|not decided) \(p\)", "verdict"),
    (r"\b(?:right|wrong)(?: x \d+)? \([\w ]+, \d+ tokens\)", "judged"),
    (r"[-−+±]?(?:\\boxed\{)?(?:\d|\.\d)[\d.,:=+*/^%{}()-]*(?:\\boxed\{[\d.]*\}?)?", "#"),
]


class Command(NamedTuple):
    """Of the page, with what is shown below it."""

    line: str
    shown: list[str]


def steps(folder: Path) -> Iterator[Command]:
    """Commands with a prompt, in order; files that the page names are written before those behind them. Other blocks
    (installation) are not followed."""
    for block in _BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        if block["file"]:
            write(folder / block["file"], block["text"])
        elif block["text"].startswith("$ "):
            for part in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
                line, *shown = part.splitlines()
                yield Command(line, shown)


# Forks the commands that it reads, with the imports done; both streams as on a terminal, in the order of their lines.
SHELL = """
import importlib, json, os, runpy, sys, tempfile
from tepo.launch.forkserver import _WARM
for name in _WARM:
    importlib.import_module(name)
for line in sys.stdin:
    with tempfile.TemporaryFile("w+") as printed:
        words, environment = json.loads(line)
        child = os.fork()
        if not child:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            sys.stdout.reconfigure(line_buffering=True)
            sys.argv = words
            os.environ |= environment
            runpy.run_path(sys.argv[0], run_name="__main__")
            sys.exit()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        printed.seek(0)
        print(json.dumps([code, printed.read()]), flush=True)
"""


class Reader:
    """Who follows the page: a folder, what was exported in the shell, and the ids that were printed here. The wheel is
    installed beside the folder, with nothing else of ours in reach."""

    def __init__(self, place: Path):
        self.folder, site = place / "work", place / "site"
        self.folder.mkdir()
        pip: list[Any] = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", place / "dist", ROOT], check=True)
        (wheel,) = (place / "dist").glob("*.whl")
        subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
        self.tepo = str(site / "bin" / "tepo")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TEPO_")}
        environment |= {"PYTHONPATH": str(site), "HF_HUB_OFFLINE": "1", "COLUMNS": "96"}
        self.where: Any = {"cwd": self.folder, "env": environment, "text": True}
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.shell: Any = subprocess.Popen([sys.executable, "-c", SHELL], **self.where, **streams)
        _, files = self.runs("python", "-c", "import tepo, tepo_cli; print(tepo.__file__, tepo_cli.__file__)")
        assert files.count(str(site)) == 2, files
        self.exported: dict[str, str] = {}
        self.ids: dict[str, str] = {}  # on the page -> here

    def runs(self, program: str, *words: str) -> tuple[int, str]:
        """Exit code and output of a program that is not ours."""
        program = sys.executable if program == "python" else program
        done = subprocess.run([program, *words], **self.where, capture_output=True, check=False)
        return done.returncode, done.stdout

    def types(self, line: str) -> list[str]:
        """What a command prints, both streams, and its exit code where that is not 0."""
        line = _ID.sub(lambda match: self.ids.get(match[0], match[0]), line)
        program, *words = shlex.split(line)
        if program == "export":
            self.exported |= dict(word.split("=", 1) for word in words)
            return []
        if program == "tepo":
            self.shell.stdin.write(json.dumps([[self.tepo, *words], self.exported]) + "\n")
            self.shell.stdin.flush()
            code, printed = json.loads(self.shell.stdout.readline())
        else:
            code, printed = self.runs(program, *words)
        lines = [each.rstrip() for each in printed.strip("\n").splitlines()]
        return [*lines, f"exit code {code}"] if code else lines


def words_of(command: Command, lines: list[str]) -> list[tuple[str, str]]:
    """(what is compared, the id in it) of each word."""
    text = "\n".join(lines)
    if "--records" in command.line:
        return [(word, "") for word in text.split()]
    for number, (pattern, put) in enumerate([(_ID.pattern, "«\\g<0>»"), *_MASKS]):
        parts = re.split(r"(«[^»]*»)", text) if number else [text]  # ids are no numbers
        text = "".join(part if part.startswith("«") else re.sub(pattern, put, part) for part in parts)
    words = text.split()
    return [(re.sub("«.*?»", "«id»", word), "".join(re.findall("«(.*?)»", word))) for word in words]


def compare(command: Command, printed: list[str], ids: dict[str, str]) -> str | None:
    """What differs, or None. Ids that stand in the place of the page's are added."""
    there, place = words_of(command, printed), 0
    between = re.split(rf"^ *{LEFT_OUT} *$", "\n".join(command.shown), flags=re.MULTILINE)
    parts = [words_of(command, [lines]) for lines in between]  # the first and the last may be empty
    for number, part in enumerate(parts):
        end = len(there) - len(part)
        first, last = number == 0, number == len(parts) - 1  # these stand at the ends
        here = [word for word, _ in part]
        starts = [at for at in range(place, end + 1) if (not first or at == 0) and (not last or at == end)]
        at = next((start for start in starts if [word for word, _ in there[start : start + len(part)]] == here), None)
        if at is None:
            lines = "\n".join(f"    {line}" for line in printed)
            return f"$ {command.line}\n  does not print\n    {' '.join(here)}\n  but\n{lines}"
        ids |= {old: new for (_, old), (_, new) in zip(part, there[at : at + len(part)], strict=True) if old}
        place = at + len(part)
    return None


def check(place: Path) -> int:
    """Follow the page. Returns how many commands do not print what it shows."""
    wrong, reader = 0, Reader(place)
    for command in steps(reader.folder):
        if problem := compare(command, reader.types(command.line), reader.ids):
            wrong += 1
            sys.stdout.write(f"{problem}\n")
            sys.stdout.flush()
    reader.shell.communicate()  # the end of its input ends it
    return wrong


@pytest.mark.disaster
def test_the_page_is_what_its_reader_sees_and_needs_no_network() -> None:
    """Where namespaces are not allowed the page is followed all the same."""
    no_network = ("unshare", "--map-root-user", "--net")
    allowed = not subprocess.run([*no_network, "true"], capture_output=True).returncode
    command = [*(no_network if allowed else ()), sys.executable, "-m", "tests.integration.test_tutorial"]
    here = {**os.environ, "PYTHONPATH": str(ROOT)}  # verl installs a package of the name `tests`, too
    done = subprocess.run(command, cwd=ROOT, env=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        sys.exit(check(Path(place)) > 0)
