"""The examples of docs/own-method.md, as a reader copies them: the files that the page names, with what it shows."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "own-method.md"
_FILE = re.compile(r"`((?:functions|objective)/(\w+)\.(?:py|yaml))`:\n\n```(?:python|yaml)\n(.*?)^```", re.M | re.S)
COMMANDS = re.findall(r"^tepo .*NAME.*$", PAGE.read_text(), re.MULTILINE)


def examples() -> dict[str, dict[str, str]]:
    """Name of each example -> its files, by their path in a folder of TEPO_PATH."""
    found: dict[str, dict[str, str]] = {}
    for path, name, text in _FILE.findall(PAGE.read_text()):
        found.setdefault(name, {})[path] = text
    return found


def follow(name: str, folder: Path) -> Path:
    """Write the files of an example into a folder, and return it."""
    for path, text in examples()[name].items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    return folder
