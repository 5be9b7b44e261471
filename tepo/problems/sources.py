"""Sources of problems: generated, a folder of `NAME.jsonl` (TEPO_DATA), a copy that was kept here, or the hub through
`datasets`."""

import codecs
import importlib.util
import json
import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tepo.common import paths
from tepo.common.errors import UserError
from tepo.common.files import content_hash, file_digest, parse_json, write_atomic
from tepo.common.schema import REQUIRED, option
from tepo.common.text import counted, install_line
from tepo.problems.hashes import differing_rows, numbered, pick_pinned, pinned_rows, rows_hash, set_hash
from tepo.problems.problem import Problem
from tepo.problems.row_files import table_rows
from tepo.problems.rows import AS_WRITTEN, last_box, problem_of
from tepo.problems.splits import Split

_ROW = '{"id", "problem", "answer"}'
_MISTAKES = 5  # that are named where not all of them are asked for


@dataclass(frozen=True)
class Procedural:
    """Generated problems."""

    tasks: dict[str, float] = option(REQUIRED, "task and its weight")
    seed: int = option(REQUIRED, "of the draw")
    split: Split = option("test", "of the prompts: train, validation and test have none in common")


@dataclass(frozen=True)
class Fields:
    """Names of the columns of a data set."""

    problem: str = option("problem", "column of the statement")
    answer: str = option("answer", "column of the answer")
    family: str | None = option(None, "column that groups problems")
    boxed: bool = option(False, "the answer is what the last \\boxed{} of its column holds")
    after: str | None = option(None, "the answer is the number behind this mark, such as ####; commas are left out")


@dataclass(frozen=True)
class Dataset:
    """A public data set, as `datasets.load_dataset` takes it."""

    # FILE.jsonl lies below the folder of the declaration; a builder takes `data_files` anywhere
    path: str = option(REQUIRED, "a file of problems, FILE.jsonl; a hub id; a folder; or a builder: json, parquet")
    revision: str | None = option(None, "the pinned commit; where `data_files` hold {revision} it is put there")
    config: str | None = option(None, "configuration of the hub set")
    split: str = option("test", "split of the hub set")
    data_files: tuple[str, ...] = option((), "files of a builder")
    fields: Fields = option(Fields(), "which column holds what")
    file: str | None = option(None, "stem that TEPO_DATA is searched for, if not the set's own name")
    hash: str | None = option(None, "of this copy's content, where it differs a little from the one in TEPO_DATA")


def load_dataset_problems(source: Dataset, name: str, count: int, expected: str | None) -> list[Problem]:
    """The rows of the set `name`, those on this machine in front of the hub's. Raises UserError unless they are as
    many as declared and, where their hash is given (`expected`), the pinned ones."""
    if local := problem_file(source, name):
        problems, origin = read_problem_file(local), str(local)
    else:
        problems, origin = read_hub(source, name), f"{source.path}@{source.revision}"
    found_hash = set_hash(problems)
    if expected is None and len(problems) == count:
        return problems
    pinned = pinned_rows(name)
    if expected is not None and found_hash in (expected, source.hash):
        renamed = source.file and not differing_rows(problems, pinned)  # a file's ids may begin with the file's name
        return numbered(problems, name) if renamed else problems
    reordered = pick_pinned(problems, pinned, name) if expected else None
    if reordered and set_hash(reordered) == expected:
        return reordered
    raise mismatch(problems, name, count, origin)


def problem_file(source: Dataset, name: str) -> Path | None:
    """The file that holds the set's rows on this machine, where there is one: that of the declaration, else
    `TEPO_DATA/NAME.jsonl`, else the copy that `keep` made. Raises UserError when TEPO_DATA is no folder."""
    if source.path.endswith(".jsonl"):
        return Path(source.path)
    file, folder = _kept(source, name), os.environ.get("TEPO_DATA")
    if folder:
        if not Path(folder).is_dir():
            fix = "point it at a folder of NAME.jsonl files, or unset it to use the hub"
            raise UserError("TEPO_DATA is not a folder", where=folder, fix=fix)
        path = Path(folder) / f"{source.file or name}.jsonl"
        file = path if path.is_file() else file
    return file if file.is_file() else None


def keep(source: Dataset, name: str, count: int, expected: str | None) -> str:
    """Have the rows of a set on this machine, checked, for when there is no network, be they from the hub or from a
    URL. Returns in words what was done. Raises UserError as `load_dataset_problems`."""
    fetched = is_remote(source, name)
    problems = load_dataset_problems(source, name, count, expected)
    if fetched:
        keys = {"id": "id", "problem": "prompt", "answer": "answer", "subject": "family"}
        rows = [{key: getattr(problem, field) for key, field in keys.items()} for problem in problems]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_atomic(_kept(source, name), lines, option="XDG_CACHE_HOME")
    return f"{counted(len(problems), 'problem')} {'fetched' if fetched else 'there already'}"


def is_remote(source: Dataset, name: str) -> bool:
    """Tell whether the rows of a set have to come over a network."""
    on_hub = "/" in source.path and not Path(source.path).exists()
    return problem_file(source, name) is None and (on_hub or any("://" in file for file in source.data_files))


def _kept(source: Dataset, name: str) -> Path:
    """The file of a kept copy, there or not; another declaration has another one."""
    declared = content_hash([vars(source) | {"fields": vars(source.fields)}, name])
    return paths.cache() / "problems" / f"{name}-{declared}.jsonl"


def content(source: Dataset, name: str) -> list[Any]:
    """Identity of the rows of a set without a pinned hash, JSON-able: a hash of those that lie on this machine,
    wherever they lie, else the declaration, of which a kept copy is one. Nothing is downloaded."""
    local = problem_file(source, name)
    if local and local != _kept(source, name):
        return [rows_hash(read_problem_file(local), ids=True)]
    folder = Path(source.path)
    files = [Path(file.replace("{revision}", source.revision or "main")) for file in source.data_files]
    inside = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    contents = [file_digest(file) if file.is_file() else str(file) for file in [*files, *inside]]
    fields = {key: value for key, value in vars(source.fields).items() if (key, value) != ("after", None)}
    return [None if inside else source.path, source.revision, source.config, source.split, fields, contents]


def read_problem_file(path: Path, most: int | None = _MISTAKES) -> list[Problem]:
    """Rows `{"id", "problem", "answer", …}` of a JSON-lines file; `subject`, else `level`, becomes the family. Splits
    on newline only. Raises UserError for a file that is missing, in UTF-16 or holds no rows, and for its first `most`
    lines that are no rows, have no gold answer or an id that is there twice."""
    if not path.is_file():
        what = "is a folder, not a file of problems" if path.is_dir() else "no such file"
        raise UserError(what, where=str(path), fix=f"give a file with {_ROW} on each line")
    problems, mistakes = _parsed(path.read_bytes())
    if most is not None and len(mistakes) > most:
        mistakes = (*mistakes[:most], f"and {len(mistakes) - most} more mistakes: `tepo data verify` lists them")
    if mistakes:
        raise UserError("\n".join(mistakes), where=str(path), fix=f"{_ROW} on each line, in UTF-8")
    return list(problems)


@lru_cache(maxsize=8)
def _parsed(text: bytes) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """The rows in a file's bytes, and a sentence for each mistake; kept, because a plan asks for the same file in every
    row of its table."""
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in text[:4]:
        return (), ("the file is in UTF-16, not UTF-8: convert it with iconv -f utf-16 -t utf-8",)
    problems: list[Problem] = []
    mistakes, garbled = [], 0
    lines_of: dict[str, list[int]] = {}
    for number, line in enumerate(text.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            problems.append(problem_of(parse_json(line, **AS_WRITTEN)))
            lines_of.setdefault(problems[-1].id, []).append(number)
        except ValueError as error:
            mistakes.append(f"line {number}: {error}")
            garbled += str(error).startswith(("not JSON", "not text"))
    if not problems and garbled == len(mistakes) > 1:  # a table, a packed file, JSON over many lines
        mistakes = [f"none of its {garbled:,} lines is JSON; {mistakes[0]}"]
    for name, numbers in lines_of.items():
        if len(numbers) > 1:
            mistakes.append(f"lines {', '.join(map(str, numbers))} have the same id {name!r}")
    return tuple(problems), tuple(mistakes if problems or mistakes else ["the file holds no problems"])


def check_source(source: Dataset, name: str) -> None:
    """Raises UserError where nothing could read a set: no file of it on this machine, and no `datasets`."""
    if problem_file(source, name) is None and importlib.util.find_spec("datasets") is None:
        fix = f"{install_line('hub')}, or {_instead(source, name)}"
        raise UserError("the package `datasets` is not installed", where=name, fix=fix)


def _instead(source: Dataset, name: str) -> str:
    return f"set TEPO_DATA to a folder with {source.file or name}.jsonl"


def read_hub(source: Dataset, name: str) -> list[Problem]:
    """Rows through `datasets`, ids `NAME-n` in the set's order. Raises UserError when the library, the set or a column
    is missing."""
    check_source(source, name)
    import datasets

    files = [file.replace("{revision}", source.revision or "main") for file in source.data_files]
    revision = None if "{revision}" in "".join(source.data_files) else source.revision
    try:
        table = datasets.load_dataset(
            source.path, source.config, split=source.split, revision=revision, data_files=files or None
        )
    except Exception as error:  # many kinds: no network, unknown set, gated set, unknown split
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        fix = f"check the network, HF_TOKEN and HF_HUB_OFFLINE, or {_instead(source, name)}"
        fix += "; with a network, `tepo model fetch --all STUDY` keeps what a study needs"
        where = f"{source.path}@{source.revision}"
        raise UserError(f"could not load {name}: {reason}", where=where, fix=fix) from error
    columns = [column for column in (source.fields.problem, source.fields.answer, source.fields.family) if column]
    missing = [column for column in columns if column not in table.column_names]
    if missing:
        fix = f"columns: {', '.join(table.column_names)}; set dataset.fields"
        raise UserError(f"the data set has no column {missing[0]!r}", where=source.path, fix=fix)
    fields, problems, mistakes = source.fields, [], []
    for index, row in enumerate(table_rows(table.with_format("arrow")[:])):
        answer, family = row[fields.answer], row[fields.family] if fields.family else ""
        if isinstance(answer, list) and len(answer) == 1:
            answer = answer[0]
        if isinstance(answer, float) and answer.is_integer():
            answer = int(answer)
        if fields.boxed:
            answer = last_box(str(answer))
        if fields.after:
            answer = str(answer).rpartition(fields.after)[2].replace(",", "")
        family = "; ".join(family) if isinstance(family, list) else str(family)
        try:
            problem = problem_of({"id": f"{name}-{index}", "problem": row[fields.problem], "answer": answer})
            problems.append(
                replace(problem, prompt=problem.prompt.strip(), answer=problem.answer.strip(), family=family)
            )
        except ValueError as error:
            mistakes.append(f"row {index}: {error}")
    if mistakes:
        more = [f"and {len(mistakes) - _MISTAKES} more"] if len(mistakes) > _MISTAKES else []
        fix = "another revision, or `dataset.fields` that say which column holds what"
        raise UserError("\n".join([*mistakes[:_MISTAKES], *more]), where=f"{source.path}@{source.revision}", fix=fix)
    return problems


def mismatch(problems: list[Problem], name: str, count: int, place: str) -> UserError:
    """The error for a set that is not the declared one; it names the rows of a shipped one,
    and the hash of what is there."""
    pinned = pinned_rows(name)
    rows = differing_rows(problems, pinned) if pinned else []
    named = ", ".join(f"{name}-{row}" for row in rows[:12]) + (f" and {len(rows) - 12} more" if len(rows) > 12 else "")
    what = f"{name}: the content is not the pinned one"
    if len(problems) != count:
        what = f"{name}: {len(problems)} rows, expected {count}"
    fix = "use the pinned copy: copies of a benchmark differ in statements and golds"
    if not pinned:
        fix = f"where they are the right ones: `count: {len(problems)}`, and `hash: {set_hash(problems)}` or none"
    what += f"; rows that differ: {named}" if rows else ""
    return UserError(f"{what}; its content is {set_hash(problems)}", where=place, fix=fix)
