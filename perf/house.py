"""State of the house at a commit: its size, what its tests hold, and whether its names lead to the right line.

    python -m perf.house lines                        # files, lines and statements by part
    python -m perf.house mutants PART … [--count 60]  # random mutants of tepo/PART (perf/mutants.py)
    python -m perf.house names                        # paths, classes and functions with their arguments, nothing else
    python -m perf.house score ANSWERS                # FILE:NAME per line, to perf/results/house_questions.tsv

Each works on a clone of `--commit` (HEAD) in a temporary folder and puts its figures into perf/results/house.json under
that commit. `names` is for somebody who has seen nothing else and says for each question "where is the line that …?"
which file and function it is in. Mutants that were stopped go on where they were.
"""

import argparse
import ast
import csv
import importlib
import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perf.mutants import HEAVY, Look, drawn, look, try_mutants

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "perf/results/house.json"
QUESTIONS = ROOT / "perf/results/house_questions.tsv"
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def statements(text: str) -> int:
    """Statements of a module at any depth; a docstring is none."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    return sum(not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in nodes)


def part_of(file: Path) -> str:
    """The part of a file in the tree: a room of tepo/, a folder of tests/unit, or the top folder."""
    deep = {"tepo": 2, "tests": 3 if file.parts[1] == "unit" else 2}.get(file.parts[0], 1)
    return "/".join(file.parts[:-1][:deep])


def sizes(tree: Path) -> dict[str, dict[str, int]]:
    """Files, lines and statements of each part, then of each top folder as `all FOLDER`."""
    found: dict[str, Counter[str]] = {}
    for path in sorted(path for path in tree.glob("*/**/*.py") if not path.parts[len(tree.parts)].startswith(".")):
        file, text = path.relative_to(tree), path.read_text()
        for part in (part_of(file), f"all of {file.parts[0]}/"):
            found.setdefault(part, Counter()).update(files=1, lines=len(text.splitlines()), statements=statements(text))
    return {part: dict(found[part]) for part in sorted(found)}


def names(tree: Path) -> Iterator[str]:
    """Lines with the path of each module and, indented, its classes and functions with the names of their arguments."""

    def inside(body: list[ast.stmt], indent: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield f"{indent}class {node.name}"
                yield from inside(node.body, indent + "  ")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = [one.arg for one in ast.iter_child_nodes(node.args) if isinstance(one, ast.arg)]
                yield f"{indent}{node.name}({', '.join(given)})"

    for package in ("tepo", "tepo_cli"):
        for path in sorted((tree / package).rglob("*.py")):
            yield str(path.relative_to(tree))
            yield from inside(ast.parse(path.read_text()).body, "  ")


def questions() -> list[tuple[str, str, str]]:
    """(question, file, name) of each line of the table."""
    with QUESTIONS.open(newline="") as text:
        return [(row["question"], row["file"], row["name"]) for row in csv.DictReader(text, delimiter="\t")]


def score(answers: list[str]) -> dict[str, int]:
    """Count the answers FILE:NAME with the right file, and those with the right name in it as well."""
    if odd := [answer for answer in answers if ":" not in answer and answer != "?"]:
        raise ValueError(f"not FILE:NAME, and not ? for an answer that nobody has: {odd[0]!r}")
    pairs = [tuple(part.strip(" `") for part in answer.partition(":")[::2]) for answer in answers]
    asked = questions()
    same = [(given[0] == file, given == (file, name)) for given, (_, file, name) in zip(pairs, asked, strict=True)]
    return {"asked": len(asked), "file": sum(file for file, _ in same), "name": sum(both for _, both in same)}


def kept() -> dict[str, Any]:
    """The results, by commit."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def keep(commit: str, figures: dict[str, Any]) -> None:
    """Put figures beside those that the results have of the commit."""
    stored = kept()
    stored.setdefault(commit, {}).update(figures)
    RESULTS.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")


def git(*words: str | Path) -> str:
    return subprocess.run(["git", "-C", ROOT, *words], check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m perf.house", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["lines", "mutants", "names", "score"])
    parser.add_argument("given", nargs="*", metavar="PART|ANSWERS")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commit", default="HEAD")
    asked = parser.parse_args()
    commit = git("rev-parse", "--short=8", asked.commit)
    if asked.what == "score":
        figures = score(Path(asked.given[0]).read_text().strip().splitlines())
        print("{asked} questions: right file {file}, right file and name {name}".format(**figures))
        keep(commit, {"questions": figures})
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder).resolve() / "tree"
        git("clone", "--quiet", "--shared", "--no-checkout", ROOT, tree)
        git("-C", tree, "checkout", "--quiet", commit)
        if asked.what == "lines":
            found = sizes(tree)
            for part, row in found.items():
                print(f"{part:32} {row['files']:5} {row['lines']:7} {row['statements']:7}")
            keep(commit, {"lines": found})
        elif asked.what == "names":
            print(*names(tree), sep="\n")
        else:
            os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
            for module in HEAVY:
                importlib.import_module(module)
            looks: dict[str, Look] = {}
            for part in asked.given:
                mutants = drawn(tree, part, asked.seed)
                stored = kept().get(commit, {}).get("mutants", {})
                if stored.get(part, {}).get("seed") != asked.seed:
                    stored[part] = {"seed": asked.seed, "possible": len(mutants), "tried": 0, "not caught": []}
                row, files = stored[part], look(tree, part, looks)
                for line in try_mutants(tree, mutants[row["tried"] : asked.count], files, looks):
                    row["tried"] += 1
                    if not line.startswith("caught"):
                        row["not caught"].append(f"{row['tried']}. {line}")
                    print(f"{row['tried']:3} {line}", flush=True)
                    keep(commit, {"mutants": stored})
                print(f"{part}: {len(row['not caught'])} of {row['tried']} not caught", flush=True)


if __name__ == "__main__":
    main()
