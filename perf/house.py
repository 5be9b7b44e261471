"""State of the house: its size, its names, and what its tests hold.

    python -m perf.house lines                        # files, lines and statements by part
    python -m perf.house names                        # paths, classes and functions with their arguments, nothing else
    python -m perf.house mutants PART … [--count 60]  # random mutants of tepo/PART (perf/mutants.py)

`names` is for somebody who has seen nothing else and says for each question of perf/results/house_questions.tsv, "where
is the line that …?", which file and function it is in. Mutants change a clone of the last commit; those that are not
caught go to perf/results/house.json under that commit, and those that were stopped go on where they were.
"""

import argparse
import ast
import importlib
import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from perf.mutants import HEAVY, Look, drawn, look, try_mutants

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "perf/results/house.json"


def sizes(tree: Path) -> dict[str, Counter[str]]:
    """Files, lines and statements (a docstring is none) of each part: a room of tepo/, a folder of tests/unit, or a top
    folder; then of each top folder as `all of FOLDER`."""
    found: dict[str, Counter[str]] = {}
    for path in sorted(path for path in tree.glob("*/**/*.py") if not path.parts[len(tree.parts)].startswith(".")):
        file, text = path.relative_to(tree), path.read_text()
        deep = {"tepo": 2, "tests": 3 if file.parts[1] == "unit" else 2}.get(file.parts[0], 1)
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
        code = [one for one in nodes if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
        for part in ("/".join(file.parts[:-1][:deep]), f"all of {file.parts[0]}/"):
            found.setdefault(part, Counter()).update(files=1, lines=len(text.splitlines()), statements=len(code))
    return found


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


def mutate(parts: list[str], count: int, seed: int) -> None:
    """Try `count` mutants of each part, and keep after each what was not caught."""

    def git(*words: str | Path) -> str:
        return subprocess.run(["git", "-C", ROOT, *words], check=True, capture_output=True, text=True).stdout.strip()

    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    for module in HEAVY:
        importlib.import_module(module)
    commit, looks = git("rev-parse", "--short=8", "HEAD"), dict[str, Look]()
    stored = json.loads(RESULTS.read_text())
    kept = stored.setdefault(commit, {}).setdefault("mutants", {})
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder).resolve() / "tree"
        git("clone", "--quiet", "--shared", ROOT, tree)
        git("-C", tree, "checkout", "--quiet", commit)
        for part in parts:
            mutants = drawn(tree, part, seed)
            if kept.get(part, {}).get("seed") != seed:
                kept[part] = {"seed": seed, "possible": len(mutants), "tried": 0, "not caught": []}
            row, files = kept[part], look(tree, part, looks)
            for line in try_mutants(tree, mutants[row["tried"] : count], files, looks):
                row["tried"] += 1
                row["not caught"] += [] if line.startswith("caught") else [f"{row['tried']}. {line}"]
                print(f"{row['tried']:3} {line}", flush=True)
                RESULTS.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
            print(f"{part}: {len(row['not caught'])} of {row['tried']} not caught", flush=True)


if __name__ == "__main__":
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m perf.house", description=__doc__, formatter_class=form)
    parser.add_argument("what", choices=["lines", "names", "mutants"])
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if asked.what == "mutants":
        mutate(asked.parts, asked.count, asked.seed)
    elif asked.what == "names":
        print(*names(ROOT), sep="\n")
    else:
        for part, row in sorted(sizes(ROOT).items()):
            print(f"{part:32} {row['files']:5} {row['lines']:7} {row['statements']:7}")
