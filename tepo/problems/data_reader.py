"""The reader of a user's own data: a file (CSV, TSV, JSON, JSON lines, Parquet), `ORG/NAME[/CONFIG][:SPLIT]` of the
hub, or `reasoning_gym:TASK`.

Columns are found by the names that the field gives them, chat messages and verl's rows among them; `data.fields` names
them where they are called otherwise. The final answer is taken out of a worked solution. A row without a statement or
an answer is dropped, and counted by its reason.
"""

import importlib.util
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tepo.common.errors import UserError, unknown_name
from tepo.common.files import parse_json
from tepo.common.text import counted, install_line, spelt
from tepo.config.own_files import DATA_SUFFIXES, GYM, HUB_DATA, is_data_file
from tepo.problems.problem import Problem
from tepo.problems.row_files import read_rows, table_rows
from tepo.problems.rows import last_box, text_of
from tepo.problems.sources import read_problem_file

GYM_SIZE = 5000  # problems that are made of a task
FIELDS = ("problem", "answer", "id", "family")
ENCODING = "encoding"  # beside them in `data.fields`: of a table that is not UTF-8
# Names of columns, the first that is there, as `Final Answer` too; a dot goes into a mapping, as in verl's rows.
_NAMES = {
    "problem": ("problem", "question", "prompt", "query", "instruction", "messages", "conversations", "input"),
    "answer": (
        *("answer", "final_answer", "gold", "ground_truth", "reward_model.ground_truth", "target", "label"),
        *("solution", "output", "response"),
    ),
    "id": ("id", "uuid", "unique_id", "problem_id"),
    "family": ("subject", "level", "category", "type"),
}
_SHOWN = 3  # rows that are printed
_LINE = 90  # characters of each
_LONGEST = 200  # characters of a final answer: what is longer is a solution without one
_SHORT_MARK = re.compile(r"####\s*(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ReadData:
    """Problems, and what happened to the rest. columns: which one was taken for what."""

    problems: tuple[Problem, ...]
    columns: Mapping[str, str]
    dropped: Mapping[str, int] = field(default_factory=dict)  # reason: rows
    remarks: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Lines for people on what was read: the columns, what was dropped and why, and the first rows."""
        taken = ", ".join(f"{name} from {column}" for name, column in self.columns.items())
        said = [f"{counted(len(self.problems), 'problem')} ({taken})"]
        if self.dropped:
            reasons = ", ".join(f"{count:,} {why}" for why, count in self.dropped.items())
            said.append(f"dropped {counted(sum(self.dropped.values()), 'row')}: {reasons}")
        said += self.remarks
        for one in self.problems[:_SHOWN]:
            text = " ".join(one.prompt.split())
            said.append(f"  {spelt(text[:_LINE])}{'…' if len(text) > _LINE else ''} → {spelt(one.answer)}")
        return said


def read_data(name: str, fields: Mapping[str, str] | None = None, most: int | None = 5) -> ReadData:
    """The problems of a user's own data.

    fields: column of each of `FIELDS`, where its name does not say it, and the `ENCODING` of a table. JSON lines with
    `id`, `problem` and `answer` are taken whole or not at all (`sources.read_problem_file`; most: mistakes that are
    named).

    Raises UserError for what is not there or cannot be read, columns that are not found, and data without a single
    problem."""
    wanted = dict(fields or {})
    encoding = wanted.pop(ENCODING, None)
    for key in wanted:
        if key not in FIELDS:
            raise unknown_name("field", key, (*FIELDS, ENCODING), where=f"data.fields.{key}")
    if encoding and not is_data_file(name):
        raise UserError(f"data.fields.{ENCODING} is for CSV and TSV files", where=name, fix="leave it out")
    if name.startswith(GYM):
        return _gym(name)
    if not is_data_file(name):
        return _chosen(_hub_rows(name), name, wanted)
    path = Path(name).expanduser()
    if not path.is_file():
        what = "is a folder, not a file of problems" if path.is_dir() else "no such file"
        raise UserError(what, where=str(path), fix="a file of problems: " + ", ".join(DATA_SUFFIXES))
    if path.suffix.lower() == ".jsonl" and not fields and not _foreign(path):
        return ReadData(tuple(read_problem_file(path, most)), {name: name for name in ("problem", "answer")})
    state = path.stat()
    return _file(path, tuple(sorted(wanted.items())), encoding, (state.st_size, state.st_mtime_ns, state.st_ino))


def _foreign(path: Path) -> bool:
    """Tell whether the first line of a file is a row in other words than `id`, `problem`, `answer`."""
    with path.open("rb") as lines:
        try:
            first = parse_json(next((line for line in lines if line.strip()), b""))
        except ValueError:
            return False
    if not isinstance(first, Mapping) or "problem" in first:
        return isinstance(first, Mapping) and ("id" not in first or "answer" not in first)
    return _has_problem(first)


def _has_problem(row: Mapping[str, Any]) -> bool:
    alike = _alike(row)
    return any(_at(row, alike.get(column, column)) is not None for column in _NAMES["problem"])


@lru_cache(maxsize=8)
def _file(path: Path, fields: tuple[tuple[str, str], ...], encoding: str | None, _state: Any) -> ReadData:
    """Kept while the file is the same: a plan asks for it in every row of its table."""
    rows, remarks = read_rows(path, _has_problem, encoding)
    read = _chosen(rows, str(path), dict(fields))
    return replace(read, remarks=(*remarks, *read.remarks))


def _hub_rows(name: str) -> list[Any]:
    """Rows of a set of the hub. Raises UserError where `datasets` is missing or does not load it."""
    found = HUB_DATA.fullmatch(name)
    assert found
    if importlib.util.find_spec("datasets") is None:
        raise UserError("the package `datasets` is not installed", where=name, fix=install_line("hub"))
    import datasets

    try:
        loaded = datasets.load_dataset(found["path"], found["config"], split=found["split"] or "train")
        return table_rows(loaded.with_format("arrow")[:])
    except Exception as error:  # many kinds: no network, unknown set, gated set, unknown split
        said = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        fix = "ORG/NAME/CONFIG:SPLIT, as in openai/gsm8k/main:train; check the network and HF_TOKEN"
        raise UserError(f"could not load the data set: {said}", where=name, fix=fix) from error


def _at(row: Any, column: str) -> Any:
    """The value of a column, dots going into mappings; None where it is not there."""
    value = row
    for part in [column] if isinstance(row, Mapping) and column in row else column.split("."):
        if isinstance(value, str) and value.startswith("{"):  # a table keeps a mapping as text
            try:
                value = json.loads(value)
            except ValueError:
                return None
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _alike(columns: Iterable[Any]) -> dict[str, Any]:
    """Columns by their names as `_NAMES` would spell them."""
    return {str(column).casefold().replace(" ", "_"): column for column in columns}


def _columns(rows: Sequence[Any], where: str, fields: Mapping[str, str]) -> dict[str, str]:
    """Column of each field; an answer that only a conversation holds has that of the problem."""
    first = [row for row in rows[:100] if isinstance(row, Mapping)]
    there = sorted({key for row in first for key in row})
    alike = _alike(there)
    fix = f"columns: {', '.join(there) or 'none'}; data.fields.problem=COLUMN, data.fields.answer=COLUMN"
    chosen: dict[str, str] = {}
    for name, likely in _NAMES.items():
        for column in [fields[name]] if name in fields else (alike.get(one, one) for one in likely):
            if any(_at(row, column) is not None for row in first):
                chosen[name] = column
                break
        else:
            if name in fields:
                raise UserError(f"no column {fields[name]!r}", where=where, fix=fix)
    if "problem" not in chosen:
        raise UserError("no column holds a problem", where=where, fix=fix)
    if "answer" not in chosen:
        if not any(_turns(_at(row, chosen["problem"])) for row in first):
            raise UserError("no column holds an answer", where=where, fix=fix)
        chosen["answer"] = chosen["problem"]
    return chosen


def _chosen(rows: Iterable[Any], where: str, fields: Mapping[str, str]) -> ReadData:
    """The problems of rows. Raises UserError where there is none."""
    rows = list(rows)
    columns = _columns(rows, where, fields)
    stem = Path(where).stem if is_data_file(where) else where.partition(":")[0].replace("/", "_")
    problems: list[Problem] = []
    dropped: Counter[str] = Counter()
    systems = 0
    ids: set[str] = set()
    for index, row in enumerate(rows):
        try:
            statement, system = _statement(_at(row, columns["problem"]))
            answer = final_answer(_answered(_at(row, columns["answer"])))
        except ValueError as error:
            dropped[str(error)] += 1
            continue
        systems += system
        own = _at(row, columns["id"]) if "id" in columns else None
        name = str(own) if own is not None and str(own) not in ids else f"{stem}-{index}"
        ids.add(name)
        family = _at(row, columns["family"]) if "family" in columns else ""
        problems.append(Problem(name, statement, answer, str(family or "")))
    if not problems:
        reasons = ", ".join(f"{count:,} {why}" for why, count in dropped.items()) or "no rows"
        fix = "data.fields.problem=COLUMN, data.fields.answer=COLUMN"
        raise UserError(f"no problem in it: {reasons}", where=where, fix=fix)
    remarks = []
    if systems:
        remarks.append(f"left out {counted(systems, 'system message')}: data.prompt=FILE.txt asks in your own words")
    repeated = len(problems) - len({one.prompt for one in problems})
    if repeated:
        remarks.append(f"{counted(repeated, 'problem')} more than once")
    return ReadData(tuple(problems), columns, dict(dropped), tuple(remarks))


def _turns(value: Any) -> list[tuple[str, str]]:
    """Role and text of each message of a conversation (`role`, `content`, or ShareGPT's `from`, `value`); none for
    anything else. Parts of a message that are no text make it none."""
    if isinstance(value, str) and value.lstrip().startswith("[{"):
        try:
            value = json.loads(value)
        except ValueError:
            return []
    turns = []
    for one in value if isinstance(value, list) else []:
        if not isinstance(one, Mapping):
            return []
        role, text = one.get("role", one.get("from")), one.get("content", one.get("value"))
        if isinstance(text, list):
            text = "".join(part.get("text", "") for part in text if isinstance(part, Mapping))
        if not isinstance(text, str):
            return []
        turns.append(({"human": "user", "gpt": "assistant"}.get(str(role), str(role)), text))
    return turns


def _statement(value: Any) -> tuple[str, bool]:
    """The statement of a problem, and whether a system message stood before it. Raises ValueError with the reason why
    there is none."""
    if turns := _turns(value):
        asked = [text for role, text in turns if role == "user"]
        if len(asked) != 1:
            raise ValueError("with several questions" if asked else "without a question")
        return asked[0].strip(), turns[0][0] == "system"
    if not isinstance(value, str) or not value.strip():
        raise ValueError("without a problem")
    return value.strip(), False


def _answered(value: Any) -> str:
    """The text that holds an answer. Raises ValueError with the reason why there is none."""
    if turns := _turns(value):
        said = [text for role, text in turns if role == "assistant"]
        if not said:
            raise ValueError("without an answer")
        return said[-1]
    if isinstance(value, list):
        if len(value) != 1:
            raise ValueError("with several answers" if value else "without an answer")
        value = value[0]
    if isinstance(value, float) and value.is_integer() and not hasattr(value, "text"):
        value = int(value)
    if value is None:
        raise ValueError("without an answer")
    return text_of(value, "the answer")


def final_answer(text: str) -> str:
    """The final answer in a text: behind `####` (GSM8K), in the last `\\boxed{}`, or the text itself where it is short.
    Raises ValueError where there is none."""
    if marked := _SHORT_MARK.findall(text):
        return marked[-1].replace(",", "")
    if "\\boxed" in text:
        text = last_box(text)
    text = text.strip()
    if not text or text.lower() == "nan":
        raise ValueError("without an answer")
    if len(text) > _LONGEST or "\n\n" in text:
        raise ValueError("whose solution marks no final answer")
    return text


def _gym(name: str) -> ReadData:
    """Problems of a task of reasoning-gym (seed 0); its own scorer judges (`data.reward`), the grader where a gold is a
    formula. Raises UserError for a task that is not there."""
    task = name.removeprefix(GYM)
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise UserError("reasoning-gym is not installed", where=name, fix="pip install reasoning-gym") from None
    if task not in DATASETS:
        raise unknown_name("task of reasoning-gym", task, DATASETS, where=name)
    made = reasoning_gym.create_dataset(task, size=GYM_SIZE, seed=0)
    problems = [Problem(f"{task}-{index}", one["question"], str(one["answer"]), task) for index, one in enumerate(made)]
    return ReadData(tuple(problems), {"problem": "question", "answer": "answer"})
