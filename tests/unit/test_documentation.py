"""The documentation: the site builds strictly and loads nothing, and what the pages name exists."""

import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

import tepo
from tepo.reporting.page import build_page
from tepo.reporting.page.head import PageHead
from tepo_cli.main import app

ROOT = Path(tepo.__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")] + sorted((ROOT / "docs").glob("*.md"))
WRITTEN = ("results-laptop.md", "results-comparison.md", "log.md")  # by a command, and about the past
NAMED = re.compile(
    r"(?<![\w/.<-])(?:tepo|tepo_cli|tests|perf|docs|evals|experiments|ablations|requirements)/"
    r"(?:[\w.-]+/)*(?:[\w-]+\.(?:py|md|yaml|csv|jsonl?|txt))?(?![\w*{])"
)
CHANGE = re.compile(r"^\| \d+ \| (?P<change>.+?) \| (?P<files>.+) \| (?P<number>\d+) \|$", re.MULTILINE)


class Loaded(HTMLParser):
    """What a browser would fetch to show a page, in `addresses`."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") != "canonical":
            self.addresses.append(given.get("href") or "")
        self.addresses += [given[name] or "" for name in ("src", "srcset", "poster", "data") if name in given]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a page of results."""
    folder, results = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("dist") / "results.html"
    results.write_text(build_page(PageHead("Nothing yet"), [], []))
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    known = {**os.environ, "TEPO_RESULTS_PAGE": str(results)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=known)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_in_the_site_and_is_reached_from_every_other(site: Path) -> None:
    names = {page.with_suffix(".html").name for page in (ROOT / "docs").glob("*.md")}
    assert names == {page.name for page in site.glob("*.html")} - {"404.html", "search.html"}
    for page in names:
        links = set(re.findall(r'class="[^"]*reference internal[^"]*" href="([\w-]+\.html)', (site / page).read_text()))
        assert links | {page} >= names, page


def test_the_page_of_results_is_in_the_site_and_in_its_navigation(site: Path) -> None:
    assert "<h1>Nothing yet</h1>" in (site / "results" / "page.html").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert 'href="results/page.html"' in (site / page.with_suffix(".html").name).read_text(), page
    assert not (site / "hooks").exists()


def test_the_site_loads_nothing_from_a_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        parser = Loaded()
        parser.feed(page.read_text())
        assert parser.addresses
        assert not [address for address in parser.addresses if re.match(r"(\w+:)?//", address)], page
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*[\"']?(?:\w+:)?//[^\s)]*", sheet.read_text()), sheet
    scripts = "".join(script.read_text() for script in site.rglob("*.js"))
    assert not re.findall(r"(?:importScripts|import|fetch)\([\"'](?:\w+:)?//[^\"']*", scripts)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in WRITTEN], ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    for name in NAMED.findall(page.read_text()):
        path = ROOT / name
        template = {"NAME", "mine"} & set(path.stem.split("_"))
        assert (path.parent if template else path).exists(), f"{page.name} names {name}"


def test_every_python_name_in_the_pages_exists() -> None:
    text = "".join(page.read_text() for page in PAGES if page.name not in WRITTEN)
    names = set(re.findall(r"`(tepo(?:\.\w+)+)", text))
    assert len(names) > 5
    for name in sorted(names):
        module, _, attribute = name.rpartition(".")
        parent = import_module(module)
        assert hasattr(parent, attribute) or (hasattr(parent, "__path__") and find_spec(name)), name


def test_the_numbers_of_files_are_those_that_are_listed() -> None:
    rows = {
        match["change"]: (len(re.findall(r"`[\w/.-]+/[\w.-]+`", match["files"])), int(match["number"]), match["files"])
        for match in CHANGE.finditer((ROOT / "docs" / "architecture.md").read_text())
    }
    assert len(rows) == 15
    for change, (listed, number, files) in rows.items():
        assert number == listed - files.count("` or `") + files.count("the module that reads it"), change
    contributing = re.findall(r"^\| (add .+?) \| (\d+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert len(contributing) >= 5
    assert dict(contributing) == {change: str(rows[change][1]) for change, _ in contributing}


def shown_commands() -> list[tuple[str, list[str]]]:
    """(page, words) of each `tepo …` in code, placeholders included."""
    found = []
    for page in PAGES:
        if page.name in WRITTEN:
            continue
        text = page.read_text()
        lines = [line.strip() for block in re.findall(r"```\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
        lines += [line.strip() for line in text.splitlines() if line.startswith("    ")]
        lines += re.findall(r"`(tepo [^`]+)`", text.replace("\n", " "))
        found += [(page.name, shlex.split(line, comments=True)) for line in lines if line.startswith("tepo ")]
    return found


def test_every_command_and_option_that_a_page_shows_exists() -> None:
    root = typer.main.get_command(app)
    shown = shown_commands()
    assert len(shown) > 50
    for page, words in shown:
        command = root
        for word in words[1:]:
            if not isinstance(command, TyperGroup) or word.startswith("-"):
                break
            assert word in command.commands, f"{page}: {' '.join(words)}"
            command = command.commands[word]
        known = {name for part in command.params for name in (*part.opts, *part.secondary_opts)}
        known |= {"--help", "-h", "--install-completion", "--show-completion"}
        for word in words[1:]:
            assert not word.startswith("-") or word.partition("=")[0] in known, f"{page}: {' '.join(words)}"
