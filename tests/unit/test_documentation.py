"""The documentation: the site builds strictly and loads nothing, and what the pages name exists."""

import ast
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import get_type_hints

import pytest
import typer.main
from typer.core import TyperGroup
from typer.testing import CliRunner

import tepo
from tepo.analysis.tables import study_table
from tepo.config.compose import compose
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
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")] + sorted((ROOT / "docs").glob("*.md"))
WRITTEN = ("results-comparison.md",)  # by a command
NAMED = re.compile(
    r"(?<![\w/.<-])(?:tepo|tepo_cli|tests|perf|docs|notes|evals|examples|experiments|ablations|requirements)/"
    r"(?:[\w.-]+/)*(?:[\w-]+\.(?:py|md|yaml|csv|jsonl?|txt))?(?![\w*{])"
)
FETCHED = re.compile(
    r"""<(?:script|img|source|iframe|video|object|link(?! rel="canonical"))\b[^>]*?\s(?:src|srcset|poster|data|href)="""
    r"""["']?((?:\w+:)?//[^"'\s>]*)"""
)
LINE = re.compile(r"^\| .+ \| `(?P<file>[\w/]+\.py): (?P<name>[\w.]+)` \|$", re.MULTILINE)
SECTIONS = {name: hint for name, hint in get_type_hints(RunConfig).items() if is_dataclass(hint)}
KEYS = {f"{name}.{part.name}" for name, hint in SECTIONS.items() for part in fields(hint)}
METRIC = re.compile(
    r"""["']((?:start/)?(?:actor|critic|grader|perf|response_length|rollout|timing_per_token_ms|timing_s|training|val-aux|val-core)/[^"'\s]*)["']"""
)


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


def test_every_page_is_reached_from_the_first_and_the_site_loads_nothing_from_a_network(site: Path) -> None:
    assert "<h1>Nothing yet</h1>" in (site / "results" / "page.html").read_text()
    names = {page.with_suffix(".html").name for page in (ROOT / "docs").glob("*.md")}
    linked = set(re.findall(r'href="([\w-]+\.html)', (site / "index.html").read_text()))
    assert names == {page.name for page in site.glob("*.html")} - {"404.html", "search.html"} == linked | {"index.html"}
    for page in site.rglob("*.html"):
        assert FETCHED.findall(page.read_text()) == [], page
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*[\"']?(?:\w+:)?//[^\s)]*", sheet.read_text()), sheet
    scripts = "".join(script.read_text() for script in site.rglob("*.js"))
    assert not re.findall(r"(?:importScripts|import|fetch)\([\"'](?:\w+:)?//[^\"']*", scripts)


def test_the_reference_is_what_the_docstrings_say() -> None:
    assert api_page.PAGE.read_text(encoding="utf-8") == api_page.page(), "python -m tests.unit.api_page"


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


def test_every_line_that_the_architecture_points_to_exists() -> None:
    lines = LINE.findall((ROOT / "docs/architecture.md").read_text())
    assert lines
    for file, name in lines:
        nodes = ast.walk(ast.parse((ROOT / file).read_text()))
        names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert set(name.split(".")) <= names, f"{file}: {name}"


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
    """(page, words) of each `tepo …` in code, placeholders included, and of the examples of each command's help."""
    lines = []
    for page in PAGES:
        if page.name in WRITTEN:
            continue
        text = page.read_text()
        for language, block in re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE):
            typed = re.findall(r"^\$ (.*)", block, re.MULTILINE)  # behind a prompt, with what is printed below
            typed = typed or [line.strip() for line in block.splitlines() if language in ("", "sh", "bash")]
            lines += [(page.name, line) for line in typed]
        lines += [(page.name, line.strip()) for line in text.splitlines() if line.startswith("    ")]
        lines += [(page.name, line) for line in re.findall(r"`(tepo [^`]+)`", text.replace("\n", " "))]
    commands = [typer.main.get_command(app)]
    for command in commands:
        commands += getattr(command, "commands", {}).values()
        examples = (command.help or "").partition("\b")[2].splitlines()
        lines += [(f"--help of {command.name}", line.rpartition("| ")[2].strip()) for line in examples]
    return [(page, shlex.split(line, comments=True)) for page, line in lines if line.startswith("tepo ")]


def test_every_command_and_option_that_is_shown_exists() -> None:
    usual = {"--help", "-h", "--install-completion", "--show-completion"}
    for page, words in shown_commands():
        command, (_, *rest), shown = typer.main.get_command(app), words, f"{page}: {' '.join(words)}"
        while rest and isinstance(command, TyperGroup) and not rest[0].startswith("-"):
            assert rest[0] in command.commands, shown
            command = command.commands[rest.pop(0)]
        known = usual | {name for part in command.params for name in (*part.opts, *part.secondary_opts)}
        assert {word.partition("=")[0] for word in rest if re.match(r"--?\w", word)} <= known, shown


PLACEHOLDER = re.compile(r"[A-Z]{2,}|…|<|\||NAME|\bFILE\b|://|words/|runs/")
LARGE = re.compile(r"single_gpu|scale=paper|--scale paper|slurm|--records|--watch")
DRY = ("train", "ablate", "reproduce")  # commands with --dry-run
READING = ("explain", "plan", "list")


def laptop_commands() -> list[list[str]]:
    """Words of each `tepo …` of the pages that can be tried without a GPU and without a result, once each."""
    tried: dict[str, list[str]] = {}
    for page, (_, *words) in shown_commands():
        line = " ".join(words)
        if page == "tutorial.md" or page.startswith("--help") or PLACEHOLDER.search(line) or LARGE.search(line):
            continue  # tests/integration/test_tutorial.py follows the tutorial
        if len(words) > 1 and words[0] in (*DRY, *READING):
            tried[line] = [*words, "--dry-run"] if words[0] in DRY else words
    return list(tried.values())


@pytest.mark.slow
def test_each_laptop_command_of_a_page_can_be_planned_or_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training, studies and measurements with --dry-run; what only reads as it is. What pages write first is there: a
    study, claims, a scale, and the method and the table of the first page."""
    monkeypatch.chdir(tmp_path)
    texts = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    files = dict(
        re.findall(r"^`mine/([\w/]+)\.yaml`[^\n]*\n(.*?\n```\n)", texts["README.md"], re.DOTALL | re.MULTILINE)
    )
    assert len(files) == 2
    for name, page, heading in (
        ("experiments/mine", "studies.md", "# Writing a study"),
        ("experiments/claims", "statistics.md", "# "),
        ("scale/desk", "studies.md", "## A scale of your own"),
    ):
        files[name] = texts[page].partition(heading)[2]
    for name, text in files.items():
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
    key = rf"(?:{'|'.join([*SECTIONS, *RETIRED])})\.[a-z]\w+"
    shown = re.compile(rf"(?<![\w/.-])({key})(?:\.\w+)?=|`({key})(?<!\.py)(?<!\.safetensors)`")
    # keys of other trainers stand on three pages, too
    files = [page for page in PAGES if page.name not in (*WRITTEN, "api.md", "coming-from.md", "trainers-use.md")]
    endings = (".yaml", ".py", ".md")
    files += [file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.suffix in endings]
    named = {(str(file.relative_to(ROOT)), a or b) for file in files for a, b in shown.findall(file.read_text())}
    assert len({key for _, key in named}) > 40
    assert [f"{file}: {key}" for file, key in sorted(named) if key not in KEYS] == []


def first_page_rows(columns: int) -> dict[str, list[str]]:
    """Rows of the tables of README with so many columns, by their first cell."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in lines if len(row) == columns}


def test_the_tables_of_the_first_page_are_what_the_records_say() -> None:
    """That of the language model with all its benchmarks, Table 1 with the average and the paper's."""
    words = ("words2", "otherwords2", "largewords2", "words3")
    for name, scale, keys in (("language_model", "small_lm", words), ("table1", "laptop", ())):
        ((study, units),), facts = read_facts(plan_all([name], scale, store=Path("nowhere")), records=True)
        ours, *papers = study_table(study, units, facts).blocks
        paper = [block.column("average")[row.key] for block in papers for row in block.rows]
        columns = {column.key: column for column in ours.columns}
        printed = first_page_rows(len(keys) + 4 + bool(paper))
        for number, row in enumerate(ours.rows):
            shown = [format_value(ours.column(key)[row.key], columns[key], 1) for key in (*keys, "average")]
            delta, verdict = (ours.column(key)[row.key] for key in ("delta", VERDICT))
            above = f"{format_value(delta, columns['delta'], 1)} {format_interval(delta, columns['delta'], 1)}"
            shown += ["", ""] if row.label == study.baseline else [above, verdict_in(verdict.text)]
            shown += [format_value(paper[number], columns["average"], 2)] if paper else []
            assert printed[row.label] == shown


# docs/coming-from.md --------------------------------------------------------------------------------------------------
CODE = re.compile(r"`([^`]+)`")


def rows_of(title: str) -> list[list[str]]:
    """Cells of the lines of a section's table of docs/coming-from.md, without its head."""
    sections = re.split(r"^## ", (ROOT / "docs/coming-from.md").read_text(), flags=re.MULTILINE)
    (text,) = [part for part in sections if part.startswith(title)]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


@pytest.mark.parametrize("title", ["TRL", "verl", "lighteval", "Hydra"])
def test_every_setting_of_ours_exists(title: str) -> None:
    commands = typer.main.get_command(app).commands.values()
    options = {name for command in commands for part in command.params for name in part.opts}
    base = compose(["objective=grpo_dapo"]).objective
    known = KEYS | {f"objective.{name}" for name in ("average", "keep", *base["constants"], *base["formula"])}
    groups = {field.name for field in fields(RunConfig)}
    for row in rows_of(title):
        codes = [code for code in CODE.findall(row[-1]) if "FILE" not in code]
        objective = next((code for code in codes if code.startswith("objective=grpo")), "objective=grpo_dapo")
        for code in codes:
            if "=" in code and re.split(r"[.=]", code)[0] in groups:
                compose([objective, code.replace("'", "")] if code.startswith("objective.") else [code])
            elif code.startswith("--"):
                assert code.split()[0] in options
            elif re.fullmatch(r"(?:\w+\.)+\w+", code) and not code.startswith(("evals", "data.fields")):
                assert code in known
