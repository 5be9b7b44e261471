"""Where problems come from: generated, a folder of `NAME.jsonl` (TEPO_DATA), or the hub through `datasets`."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tepo.errors import UserError
from tepo.problems.base import Problem
from tepo.problems.hashes import differing_rows, expected_row_hashes, set_hash


@dataclass(frozen=True)
class Procedural:
    """Generated problems: task -> weight, and the seed of the draw. The split keeps training and test apart."""

    tasks: dict[str, float]
    seed: int
    split: str = "test"


@dataclass(frozen=True)
class Fields:
    """Which column of a hub data set holds what. `family` (level, subject …) is for breakdowns and may be missing."""

    problem: str = "problem"
    answer: str = "answer"
    family: str | None = None


@dataclass(frozen=True)
class Dataset:
    """A public data set: `path` and `revision` as `datasets.load_dataset` takes them, or a local folder for `path`.

    `file` is the stem looked for in TEPO_DATA when it is not the benchmark's own name.
    """

    path: str
    revision: str | None = None
    config: str | None = None
    split: str = "test"
    data_files: str | None = None
    fields: Fields = Fields()
    file: str | None = None


def load_procedural(source: Procedural, count: int) -> list[Problem]:
    """`count` generated problems."""
    from tepo.problems.procedural import generate

    return generate(source.tasks, count, source.seed, source.split)


def load_dataset_problems(source: Dataset, name: str, count: int, expected: str | None) -> list[Problem]:
    """The rows of a set, from TEPO_DATA in front of the hub, checked against the pinned count and hash."""
    problems, place = read_dataset(source, name)
    check(problems, source.file or name, count, expected, place)
    return problems


def read_dataset(source: Dataset, name: str) -> tuple[list[Problem], str]:
    """The rows unchecked, and where they were found."""
    local = local_file(source.file or name)
    if local:
        return read_problem_file(local), str(local)
    return read_hub(source, source.file or name), f"{source.path}@{source.revision}"


def local_file(stem: str) -> Path | None:
    """`TEPO_DATA/STEM.jsonl` if TEPO_DATA is set and has it. Raises UserError when TEPO_DATA is no folder."""
    folder = os.environ.get("TEPO_DATA")
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise UserError(
            "TEPO_DATA is not a folder", where=folder, fix="point it at a folder of NAME.jsonl files, or unset it to use the hub"
        )
    path = Path(folder) / f"{stem}.jsonl"
    return path if path.is_file() else None


def read_problem_file(path: Path) -> list[Problem]:
    """Rows `{"id", "problem", "answer", …}` of a JSON-lines file; `subject`, else `level`, becomes the family. Splits on newline only."""
    problems = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            problems.append(Problem(str(row["id"]), row["problem"], str(row["answer"]), str(row.get("subject") or row.get("level") or "")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f'line {number} is not a row {{"id", "problem", "answer"}}: {error}', where=str(path)) from None
    if len({problem.id for problem in problems}) < len(problems):
        raise UserError("two rows have the same id", where=str(path))
    return problems


def read_hub(source: Dataset, stem: str) -> list[Problem]:
    """Rows through `datasets`, ids `STEM-n` in the set's order. Raises UserError when the library, the set or a column is missing."""
    try:
        import datasets
    except ImportError:
        raise UserError(
            "the package `datasets` is not installed",
            where=stem,
            fix="pip install 'tepo[hub]', or set TEPO_DATA to a folder with " + stem + ".jsonl",
        ) from None
    try:
        table = datasets.load_dataset(
            source.path, source.config, split=source.split, revision=source.revision, data_files=source.data_files
        )
    except Exception as error:  # many kinds: no network, unknown set, gated set, unknown split
        fix = f"check the network (HF_HUB_OFFLINE, HF_TOKEN), or set TEPO_DATA to a folder with {stem}.jsonl"
        raise UserError(
            f"could not load the data set: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            where=f"{source.path}@{source.revision}",
            fix=fix,
        ) from error
    wanted = [column for column in (source.fields.problem, source.fields.answer, source.fields.family) if column]
    missing = [column for column in wanted if column not in table.column_names]
    if missing:
        raise UserError(
            f"the data set has no column {missing[0]!r}",
            where=source.path,
            fix=f"columns: {', '.join(table.column_names)}; set dataset.fields",
        )
    return list(_rows(table, source.fields, stem))


def _rows(table: Iterable[Mapping[str, Any]], fields: Fields, stem: str) -> Iterable[Problem]:
    for index, row in enumerate(table):
        answer = row[fields.answer]
        if isinstance(answer, list) and len(answer) == 1:
            answer = answer[0]
        if isinstance(answer, float) and answer.is_integer():
            answer = int(answer)
        yield Problem(f"{stem}-{index}", row[fields.problem], str(answer), str(row[fields.family]) if fields.family else "")


def check(problems: list[Problem], stem: str, count: int, expected: str | None, place: str) -> None:
    """Raise UserError, naming the rows, unless the set is the pinned one."""
    if len(problems) == count and (expected is None or set_hash(problems) == expected):
        return
    pinned = expected_row_hashes(stem)
    rows = differing_rows(problems, pinned) if pinned else []
    named = ", ".join(f"{stem}-{row}" for row in rows[:12]) + (f" and {len(rows) - 12} more" if len(rows) > 12 else "")
    what = f"{stem}: {len(problems)} rows, expected {count}" if len(problems) != count else f"{stem}: the content is not the pinned one"
    raise UserError(
        what + (f"; rows that differ: {named}" if rows else ""),
        where=place,
        fix="use the pinned copy: copies of a benchmark differ in statements and golds (docs/benchmarks.md)",
    )
