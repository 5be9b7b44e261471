"""The docstring lint: `python -m tests.docstrings [FILES]`, by default of the tree.

It finds docstrings that begin with a question word or a pronoun (What, Of, Whether, Those ...) in place of a verb or a
noun, and two modules of the product with one name. `make style`, pre-commit and tests/unit/test_docstrings.py run it.
It needs the standard library alone. Exit code 1 where something is found.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("tepo", "tepo_cli", "perf")
PRODUCT = ("tepo", "tepo_cli")
BAD = {"what", "of", "whether", "those", "where", "how", "which", "who", "whose", "when", "why", "that"}
REPEATED = {"__init__", "__main__"}
CHOSEN = {"backends", "commands"}  # folders whose modules are named by the configuration and by the command line
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def bad_docstrings(text: str) -> Iterator[tuple[int, str]]:
    """(line, first line of the docstring) of each docstring that begins badly."""
    for node in ast.walk(ast.parse(text)):
        said = ast.get_docstring(node) if isinstance(node, Documented) else None
        if said and said.split()[0].strip(",.;()`*").lower() in BAD:
            yield node.body[0].lineno, said.splitlines()[0]


def repeated_modules(files: Iterable[Path]) -> dict[str, list[Path]]:
    """Names of modules that occur twice, with their files."""
    found = defaultdict(list)
    for file in files:
        if file.stem not in REPEATED and file.parent.name not in CHOSEN:
            found[file.stem].append(file)
    return {name: sorted(paths) for name, paths in sorted(found.items()) if len(paths) > 1}


def modules(packages: Iterable[str]) -> list[Path]:
    """Python files of packages, relative to the root of the repository."""
    return sorted(file.relative_to(ROOT) for package in packages for file in (ROOT / package).rglob("*.py"))


def complaints(files: Iterable[Path]) -> list[str]:
    """A line for each bad docstring of the files, and for each name of the product that two modules have."""
    found = [
        f"{file}:{line}: begin with a verb or a noun: {said!r}"
        for file in files
        for line, said in bad_docstrings((ROOT / file).read_text(encoding="utf-8"))
    ]
    for name, paths in repeated_modules(modules(PRODUCT)).items():
        found.append(f"{name}.py is the name of several modules: {', '.join(map(str, paths))}")
    return found


def main() -> None:
    given = [Path(word).resolve().relative_to(ROOT) for word in sys.argv[1:]]
    found = complaints([file for file in given if file.parts[0] in PACKAGES] if given else modules(PACKAGES))
    sys.stdout.writelines(f"{line}\n" for line in found)
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
