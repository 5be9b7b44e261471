"""The gallery of docs/tables.md: each command that it shows draws the picture below it, from the records."""

import re
import shlex
from pathlib import Path

import pytest

from tests.support.commands import tepo

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "tables.md").read_text()
SHOWN = re.findall(r"^    tepo (.+)\n\n!\[.+\]\((.+)\)$", PAGE, re.MULTILINE)


def drawn(svg: str) -> str:
    """What a picture says, as a hash of its data and marks: fonts and versions move its bytes."""
    return re.findall(r"<!-- chart (\w+) -->", svg)[0]


@pytest.mark.disaster
@pytest.mark.parametrize(("command", "picture"), SHOWN)
def test_the_command_draws_the_picture(command: str, picture: str, tmp_path: Path) -> None:
    assert len(SHOWN) == PAGE.count("![") >= 5
    printed = tepo(*shlex.split(command), cwd=tmp_path).stdout
    made = [path.read_text() for path in tmp_path.rglob("*.svg")] or [printed]
    assert drawn((DOCS / picture).read_text()) in [drawn(svg) for svg in made]
