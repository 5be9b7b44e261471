"""The documentation: the site builds strictly and loads nothing, and what the pages name exists."""

import ast
import os
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import fields, is_dataclass
from html.parser import HTMLParser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import get_type_hints

import pytest
import typer.main
from typer.core import TyperGroup
from typer.testing import CliRunner

import tepo
from tepo.analysis.tables import study_table
from tepo.config.run_config import RunConfig
from tepo.reporting.page import PageContent, PageHead, build_page
from tepo.reporting.tables.cells import format_interval, format_value
from tepo.reporting.tables.table import VERDICT, verdict_in
from tepo.studies.plan_studies import plan_all
from tepo.studies.planned_facts import read_facts
from tepo_cli.main import app
from tests.support.runs import write
from tests.unit import api_page

ROOT = Path(tepo.__file__).parents[1]
FOLDERS = ("examples", "experiments", "ablations", "evals", "tepo/config")
RETIRED = ("wandb",)  # sections that were taken out
PEERS = ("api.md", "coming-from.md", "trainers-use.md")  # keys of other trainers stand there too
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")] + sorted((ROOT / "docs").glob("*.md"))
WRITTEN = ("results-comparison.md",)  # by a command
# not in the navigation, but on the first page
BESIDE = {*WRITTEN, "language.md", "methods.md", "trainers.md", "train-keys.md"}
NAMED = re.compile(
    r"(?<![\w/.<-])(?:tepo|tepo_cli|tests|perf|docs|notes|evals|experiments|ablations|requirements)/"
    r"(?:[\w.-]+/)*(?:[\w-]+\.(?:py|md|yaml|csv|jsonl?|txt))?(?![\w*{])"
)
LINE = re.compile(r"^\| .+ \| `(?P<file>[\w/]+\.py): (?P<name>[\w.]+)` \|$", re.MULTILINE)
METRIC = re.compile(
    r"""["']((?:start/)?(?:actor|critic|grader|perf|response_length|rollout|timing_per_token_ms|timing_s|training|val-aux|val-core)/[^"'\s]*)["']"""
)


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
    results.write_text(build_page(PageContent(PageHead("Nothing yet"), [], [])))
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    known = {**os.environ, "TEPO_RESULTS_PAGE": str(results)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=known)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_in_the_site_and_is_reached_from_every_other(site: Path) -> None:
    assert "<h1>Nothing yet</h1>" in (site / "results" / "page.html").read_text()
    names = {page.with_suffix(".html").name for page in (ROOT / "docs").glob("*.md")}
    assert names == {page.name for page in site.glob("*.html")} - {"404.html", "search.html"}
    beside = {Path(page).with_suffix(".html").name for page in BESIDE}
    for page in names:
        links = set(re.findall(r'class="[^"]*reference internal[^"]*" href="([\w-]+\.html)', (site / page).read_text()))
        assert (links | {page}) - beside == names - beside, page
        assert 'href="results/page.html"' in (site / page).read_text(), page
    assert beside <= set(re.findall(r'href="([\w-]+\.html)', (site / "index.html").read_text()))


def test_the_reference_is_what_the_docstrings_say() -> None:
    assert api_page.PAGE.read_text(encoding="utf-8") == api_page.page(), "python -m tests.unit.api_page"


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
    text = page.read_text()
    made = re.findall(r"^`([\w./]+)`:$", text, re.MULTILINE)  # by the reader
    for name in set(NAMED.findall(text)) - set(made):
        path = ROOT / name
        template = {"NAME", "mine"} & set(path.stem.split("_"))
        assert (path.parent if template else path).exists(), f"{page.name} names {name}"


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *ROOT.glob("C*.md"), *(ROOT / "notes").glob("*.md")], ids=lambda page: page.name
)
def test_every_link_beside_the_site_leads_somewhere(page: Path) -> None:
    """mkdocs checks those of docs/."""
    for name, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()):
        file = page.parent / name if name else page
        assert file.exists(), name
        headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [re.sub(r"[^\w\s-]", "", one.lower()).replace(" ", "-") for one in headings]


def test_every_python_name_in_the_pages_exists() -> None:
    text = "".join(page.read_text() for page in PAGES if page.name not in WRITTEN)
    names = set(re.findall(r"`(tepo(?:\.\w+)+)", text))
    assert len(names) > 5
    for name in sorted(names):
        module, _, attribute = name.rpartition(".")
        parent = import_module(module)
        assert hasattr(parent, attribute) or (hasattr(parent, "__path__") and find_spec(name)), name


def defined(text: str) -> set[str]:
    """Functions and classes of a module, `Class.method` too."""
    found, stack = set(), [("", ast.parse(text).body)]
    while stack:
        prefix, body = stack.pop()
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(f"{prefix}{node.name}")
                stack.append((f"{prefix}{node.name}.", node.body))
    return found


def test_every_line_that_the_architecture_points_to_exists() -> None:
    lines = [(match["file"], match["name"]) for match in LINE.finditer((ROOT / "docs/architecture.md").read_text())]
    assert len(lines) >= 30
    missing = [f"{file}: {name}" for file, name in lines if name not in defined((ROOT / file).read_text())]
    assert missing == []


def metrics_of_the_page() -> list[re.Pattern[str]]:
    """The names of docs/metrics.md; NAME stands for a section or a benchmark, `@n` and `@k` for a number."""
    named = set(re.findall(r"`([\w-]+/[^`\s]+)`", (ROOT / "docs" / "metrics.md").read_text()))
    names = (re.escape(name).replace("NAME", r"[\w:.-]+") for name in named)
    return [re.compile(re.sub(r"@[nk]$", r"@\\d+", name)) for name in names]


def test_every_metric_in_the_code_is_on_the_page_of_metrics() -> None:
    """Names as the code writes them: a part in braces stands for some text, `@` for a number behind it."""
    found: dict[str, str] = {}
    for package in ("training", "sampling", "objectives"):
        for file in sorted((ROOT / "tepo" / package).rglob("*.py")):
            found |= dict.fromkeys(METRIC.findall(file.read_text()), str(file.relative_to(ROOT)))
    assert len(found) > 50
    known = metrics_of_the_page()
    for name, file in found.items():
        sides = [name.replace("{side}", side) for side in ("low", "high")] if "{side}" in name else [name]
        for side in sides:
            filled = re.sub(r"\{[^}]*\}", "4", side)
            begins = name.endswith(("/", "_")) or name in {"perf/cpu", "perf/gpu", "perf/max_memory", "start/val-"}
            said = any(p.fullmatch(filled) or (begins and p.pattern.startswith(re.escape(filled))) for p in known)
            assert said, f"{file} logs {name}, which docs/metrics.md does not define"


def shown_commands() -> list[tuple[str, list[str]]]:
    """(page, words) of each `tepo …` in code, placeholders included."""
    found = []
    for page in PAGES:
        if page.name in WRITTEN:
            continue
        text = page.read_text()
        lines = []
        for language, block in re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE):
            typed = re.findall(r"^\$ (.*)", block, re.MULTILINE)  # behind a prompt, with what is printed below
            lines += typed or [line.strip() for line in block.splitlines() if language in ("", "sh", "bash")]
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


PLACEHOLDER = re.compile(r"[A-Z]{2,}|…|<|\||NAME|\bFILE\b|://|words/|runs/|soft_clip|ablate first")
DRY = ("train", "ablate", "reproduce")  # commands with --dry-run
READING = ("explain", "plan", "list")


def laptop_commands() -> list[list[str]]:
    """Words of each `tepo …` of the pages that can be tried without a GPU and without a result, once each."""
    found: dict[str, list[str]] = {}
    for page, words in shown_commands():
        if page == "tutorial.md":
            continue  # its commands need its files: tests/integration/test_tutorial.py follows it
        whole = " ".join(words)
        large = re.search(r"single_gpu|scale=paper|--scale paper|slurm", whole)
        if PLACEHOLDER.search(whole) or large or len(words) < 2 or {"--records", "--watch"} & set(words):
            continue
        if words[1] in DRY and (words[2:] or words[1] == "reproduce"):
            found[whole] = [*words[1:], *(["--dry-run"] if "--dry-run" not in words else [])]
        elif words[1] in READING and (words[2:] or words[1] == "list"):
            found[whole] = words[1:]
    return list(found.values())


@pytest.mark.slow
def test_each_laptop_command_of_a_page_can_be_planned_or_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training, studies and measurements with --dry-run; what only reads as it is. The study, the claims and the scale
    that pages write first are there."""
    monkeypatch.chdir(tmp_path)
    written = (
        *(("studies.md", "# Writing a study", "experiments/mine"), ("statistics.md", "# ", "experiments/claims")),
        ("studies.md", "## A scale of your own", "scale/desk"),
    )
    for page, heading, name in written:
        text = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(heading)[2]
        write(tmp_path / "own" / f"{name}.yaml", text.partition("```yaml\n")[2].partition("```")[0])
    monkeypatch.setenv("TEPO_PATH", str(tmp_path / "own"))
    commands = laptop_commands()
    assert len(commands) > 10
    for words in commands:
        if any("reasoning_gym:" in word for word in words) and find_spec("reasoning_gym") is None:
            continue  # a package of the engines' environment
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, f"tepo {' '.join(words)}: {done.output[-500:]} {done.exception!r}"
    assert not list(tmp_path.glob("runs/*"))


def test_every_key_that_a_page_or_an_example_shows_exists() -> None:
    """`train.steps=40`, `data.held_out`: keys that were renamed or taken out would stay in a text unseen."""
    sections = {name: hint for name, hint in get_type_hints(RunConfig).items() if is_dataclass(hint)}
    known = {f"{name}.{part.name}" for name, hint in sections.items() for part in fields(hint)}
    key = rf"(?:{'|'.join([*sections, *RETIRED])})\.[a-z]\w+"
    shown = re.compile(rf"(?<![\w/.-])({key})(?:\.\w+)?=|`({key})(?<!\.py)(?<!\.safetensors)`")
    files = [page for page in PAGES if page.name not in (*WRITTEN, *PEERS)]
    endings = (".yaml", ".py", ".md")
    files += [file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.suffix in endings]
    named = {(str(file.relative_to(ROOT)), a or b) for file in files for a, b in shown.findall(file.read_text())}
    assert len({key for _, key in named}) > 40
    assert [f"{file}: {key}" for file, key in sorted(named) if key not in known] == []


def shown_scripts() -> list[tuple[str, str]]:
    """(file of the repository, all that follows it) of each `python …` of the pages."""
    found = set()
    for page in PAGES:
        if page.name not in WRITTEN:
            found |= set(re.findall(r"python (-m )?([\w./]+)([^`\n#]*)", page.read_text()))
    scripts = set()
    for module, name, rest in found:
        path = ROOT / (name.replace(".", "/") if module else name)
        file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
        if file.is_file() and ROOT in file.parents:
            scripts.add((str(file.relative_to(ROOT)), rest))
    return sorted(scripts)


def test_each_script_of_a_page_starts_and_takes_the_options_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its --help, all in this process. The benchmarks themselves run in tests/unit/perf/test_perf.py."""
    shown = shown_scripts()
    assert len({file for file, _ in shown}) >= 10
    for file, rest in shown:
        if "ArgumentParser" not in (ROOT / file).read_text():
            assert "--" not in rest, f"python {file} {rest}"
            continue
        monkeypatch.setattr("sys.argv", [file, "--help"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / file), run_name="__main__")
        usage = capsys.readouterr().out
        assert ended.value.code == 0, file
        for option in re.findall(r"--[\w-]+", rest):
            assert option in usage, f"python {file} {rest}"


def test_the_method_and_the_table_of_the_first_page_can_be_checked_and_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "README.md").read_text()
    files = re.findall(r"^`(mine/[\w/]+\.yaml)`[^\n]*\n\n```yaml\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    assert len(files) == 2
    for name, content in files:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TEPO_PATH", "mine")
    for words in (["explain", "soft_clip", "--check"], ["ablate", "first", "--dry-run"]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    assert "6 runs, 6 to do" in done.output


def first_page_rows(columns: int) -> dict[str, list[str]]:
    """Rows of the tables of README with so many columns, by their first cell."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in lines if len(row) == columns}


def test_the_tables_of_the_first_page_are_what_the_records_say() -> None:
    """That of the language model with all its benchmarks, Table 1 with the average and the paper's."""
    words = ("words2", "otherwords2", "largewords2", "words3")
    for name, scale, keys in (("language_model", "small_lm", words), ("table1", "laptop", ())):
        plan = plan_all([name], scale, store=Path("nowhere"))
        ((study, units),), facts = read_facts(plan, records=True)
        blocks = study_table(study, units, facts).blocks
        paper = [
            dict(zip([column.key for column in block.columns], row.cells, strict=True))["average"]
            for block in blocks[1:]
            for row in block.rows
        ]
        columns = {column.key: column for column in blocks[0].columns}
        printed = first_page_rows(len(keys) + 4 + bool(paper))
        for number, row in enumerate(blocks[0].rows):
            cells = dict(zip(columns, row.cells, strict=True))
            shown = [format_value(cells[key], columns[key], 1) for key in (*keys, "average")]
            above = (
                format_value(cells["delta"], columns["delta"], 1),
                format_interval(cells["delta"], columns["delta"], 1),
            )
            compared = [" ".join(above), verdict_in(cells[VERDICT].text)]
            shown += ["", ""] if row.label == study.baseline else compared
            shown += [format_value(paper[number], columns["average"], 2)] if paper else []
            assert printed[row.label] == shown
