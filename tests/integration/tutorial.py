"""docs/tutorial.md, followed in an empty folder: its files are written, its commands run in order, and what they print
is compared with what the page shows.

`python -m tests.integration.tutorial` prints each difference and ends with exit code 1 where there is one; `--write`
puts what is printed now into the page, and names the places to look at.

Numbers, ids, verdicts and what a policy answered differ from one kind of CPU to another, so they are masked; what is
read from records is compared as it is. Words are compared, not lines: a wider number wraps a note elsewhere. A line `…`
stands for any number of lines. An id on the page stands for the one that was printed in its place, also in the commands
that follow.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import commands

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
WIDTH = "96"
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


@dataclass
class Command:
    """A command of the page with what is shown below it."""

    line: str
    shown: list[str]

    @property
    def exact(self) -> bool:
        return "--records" in self.line


@dataclass
class Step:
    """A block of the page: a file that the reader makes, or commands."""

    start: int  # of the block's text in the page
    end: int
    file: str | None
    text: str

    def commands(self) -> list[Command]:
        found: list[Command] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append(Command(line[2:], []))
            else:
                found[-1].shown.append(line)
        return found


def steps(page: str) -> list[Step]:
    """Files that the page names, and blocks of commands with a prompt. Others (installation) are not followed."""
    found = [Step(*match.span("text"), match["file"], match["text"]) for match in _BLOCK.finditer(page)]
    return [step for step in found if step.file or step.text.startswith("$ ")]


class Reader:
    """Who follows the page: a folder, what was exported in the shell, and the ids that were printed here."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.exported: dict[str, str] = {}
        self.ids: dict[str, str] = {}  # on the page -> here

    def types(self, line: str) -> list[str]:
        """What a command prints, both streams, and its exit code where that is not 0."""
        line = _ID.sub(lambda match: self.ids.get(match[0], match[0]), line)
        program, *words = shlex.split(line)
        if program == "export":
            self.exported |= dict(word.split("=", 1) for word in words)
            return []
        if program == "tepo":
            environment = {"COLUMNS": WIDTH, **self.exported}
            done = commands.Started(_both_streams, "tepo_cli", *words, cwd=self.folder, **environment).end(1800, None)
        else:
            program = sys.executable if program == "python" else program
            done = subprocess.run([program, *words], cwd=self.folder, capture_output=True, text=True, check=False)
        lines = [each.rstrip() for each in done.stdout.strip("\n").splitlines()]
        return [*lines, f"exit code {done.returncode}"] if done.returncode else lines


def _both_streams(name: str, *words: str) -> None:
    """In the forked process: as on a terminal, in the order in which lines are printed."""
    os.dup2(1, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    commands._with_our_server(name, *words)


def words_of(lines: list[str], exact: bool) -> list[tuple[str, str]]:
    """(what is compared, the id in it) of each word."""
    text = "\n".join(lines)
    if exact:
        return [(word, "") for word in text.split()]
    for number, (pattern, put) in enumerate([(_ID.pattern, "«\\g<0>»"), *_MASKS]):
        parts = re.split(r"(«[^»]*»)", text) if number else [text]  # ids are no numbers
        text = "".join(part if part.startswith("«") else re.sub(pattern, put, part) for part in parts)
    words = text.split()
    return [(re.sub("«.*?»", "«id»", word), "".join(re.findall("«(.*?)»", word))) for word in words]


def segments(shown: list[str]) -> list[list[str]]:
    """Lines of the page between the `…`; the first and the last may be empty."""
    found: list[list[str]] = [[]]
    for line in shown:
        if line.strip() == LEFT_OUT:
            found.append([])
        else:
            found[-1].append(line)
    return found


def compare(command: Command, printed: list[str], ids: dict[str, str]) -> str | None:
    """What differs, or None. Ids that stand in the place of the page's are added."""
    there = words_of(printed, command.exact)
    parts = [words_of(lines, command.exact) for lines in segments(command.shown)]
    place = 0
    for number, part in enumerate(parts):
        end = len(there) - len(part)
        first, last = number == 0, number == len(parts) - 1  # these stand at the ends
        starts = [at for at in range(place, end + 1) if (not first or at == 0) and (not last or at == end)]
        here = [word for word, _ in part]
        at = next((start for start in starts if [word for word, _ in there[start : start + len(part)]] == here), None)
        if at is None:
            lines = "\n".join(f"    {line}" for line in printed)
            return f"$ {command.line}\n  does not print\n    {' '.join(here)}\n  but\n{lines}"
        ids |= {old: new for (_, old), (_, new) in zip(part, there[at : at + len(part)], strict=True) if old}
        place = at + len(part)
    return None


def rewritten(command: Command, printed: list[str]) -> tuple[list[str], bool]:
    """What the page is to show, with the same parts left out; whether all of these were found."""

    def masked(line: str) -> list[str]:
        return [word for word, _ in words_of([line], command.exact)]

    parts, lines, place = segments(command.shown), [], 0
    if len(parts) == 1:
        return printed, True
    for number, part in enumerate(parts):
        lines += [LEFT_OUT] if number else []
        if not part:
            continue
        ends = [at for at in range(place, len(printed)) if masked(printed[at]) == masked(part[-1])]
        begins = [at for at in range(place, len(printed)) if masked(printed[at]) == masked(part[0])]
        if number == 0:
            begins = [0]
        if number == len(parts) - 1:
            ends = [len(printed) - 1]
        pair = next(((low, high) for low in begins for high in ends if high - low >= len(part) // 2), None)
        if pair is None:
            return (printed if len(printed) <= 15 else command.shown), False
        lines += printed[pair[0] : pair[1] + 1]
        place = pair[1] + 1
    return lines, True


def follow(page: str, folder: Path) -> Iterator[tuple[Step, Command, list[str], Reader]]:
    """Each command with what it prints."""
    reader = Reader(folder)
    for step in steps(page):
        if step.file:
            path = folder / step.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text, encoding="utf-8")
            continue
        for command in step.commands():
            yield step, command, reader.types(command.line), reader


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def check(folder: Path) -> int:
    found = 0
    for _, command, printed, reader in follow(PAGE.read_text(encoding="utf-8"), folder):
        if problem := compare(command, printed, reader.ids):
            found += 1
            say(problem)
    return found


def write(folder: Path) -> int:
    """The page, written once all commands have run; the number of places to look at."""
    page = PAGE.read_text(encoding="utf-8")
    texts: dict[tuple[int, int], str] = {}
    found = 0
    for step, command, printed, reader in follow(page, folder):
        compare(command, printed, reader.ids)
        lines, known = rewritten(command, printed)
        if not known:
            found += 1
            say(f"look at: {command.line}\n" + "\n".join(f"    {line}" for line in printed))
        block = texts.setdefault((step.start, step.end), "")
        texts[step.start, step.end] = block + "\n".join([f"$ {command.line}", *lines]) + "\n"
    for (start, end), text in sorted(texts.items(), reverse=True):
        page = page[:start] + text + page[end:]
    PAGE.write_text(_ID.sub(lambda match: reader.ids.get(match[0], match[0]), page), encoding="utf-8")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help="put what is printed now into the page")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        sys.exit(1 if (write if asked.write else check)(Path(place)) else 0)
