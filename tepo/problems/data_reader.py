"""The reader of a user's own data: a file (CSV, TSV, JSON, JSON lines, Parquet), `ORG/NAME[/CONFIG][:SPLIT]` of the
hub, or `reasoning_gym:TASK`.

Columns are found by the names that the field gives them, chat messages, choices and verl's rows among them;
`data.fields` names them where they are called otherwise. The final answer is taken out of a worked solution. A row
without a statement or an answer is dropped, and counted by its reason.
"""

import importlib.util
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tepo.common.errors import UserError, unknown_name
from tepo.common.files import parse_json
from tepo.common.text import counted, install_line, listed, some_of, spelt
from tepo.config.own_files import DATA_SUFFIXES, GYM, HUB_DATA, is_data_file
from tepo.problems.own_data.choices import Choice, choice_columns, choices_of, letters, with_choices
from tepo.problems.own_data.golds import Gold, final_answer
from tepo.problems.own_data.statements import (
    SYSTEM_LEFT_OUT,
    check_text,
    is_picture_column,
    spelled,
    statement,
    structure,
    system_prompt,
    turns,
)
from tepo.problems.problem import Problem
from tepo.problems.row_files import read_rows, table_rows
from tepo.problems.rows import text_of
from tepo.problems.sources import read_problem_file

GYM_SIZE = 5000  # problems that are made of a task
SYSTEM = "system"  # of `FIELDS`: the column of system prompts, which are left out where none is named
FIELDS = ("problem", "answer", "id", "family", "choices", SYSTEM)
ENCODING = "encoding"  # beside them in `data.fields`: of a table that is not UTF-8
# Names of columns, the first that is there, as `Final Answer` too; a dot goes into a mapping, as in verl's rows.
_NAMES = {
    "problem": (
        *("problem", "question", "prompt", "query", "instruction", "messages", "conversations"),
        *("problem_statement", "question_text", "question_stem", "input"),
    ),
    "answer": (
        *("answer", "final_answer", "expected_answer", "correct_answer", "reference_answer", "gold_answer", "gold"),
        *("ground_truth", "reward_model.ground_truth", "target", "label", "answer_key", "answers"),
        *("solution", "output", "response", "completion"),
    ),
    "id": ("id", "uuid", "unique_id", "problem_id"),
    "family": ("subject", "level", "category", "type"),
}
_CHOSEN = ("correct_option", "correct_choice", "correct", "answer_index", "answer_idx")  # where there are choices
_BEFORE = ("context", "passage", "body")  # what a question is about
_MORE = re.compile(  # in a file of JSON lines
    rb'(?i)"[^"]*(?:choices|options|image|picture|photo|video|audio)[^"]*"\s*:|<\|?im(?:age|g)|\[im(?:age|g)|!\[|data:image'
    rb"|includegraphics|</?think"
)
_SHOWN = 3  # rows that are printed
_LOOKED = 100  # rows by which columns are chosen
_LINE = 90  # characters of each


@dataclass(frozen=True, slots=True)
class ReadData:
    """Problems, and what happened to the rest. columns: name, what it became and what was changed in how many rows, of
    each. changed: golds that are only a part of their cell. guessed: problems whose golds are a guess, with gold and
    reason of each. systems: a sentence on system prompts; empty where rows have none."""

    problems: tuple[Problem, ...]
    columns: tuple[tuple[str, str, str], ...]
    dropped: Mapping[str, int] = field(default_factory=dict)  # reason: rows
    remarks: tuple[str, ...] = ()
    changed: int = 0
    guessed: tuple[str, ...] = ()
    systems: str = ""

    def losses(self) -> list[str]:
        """Sentences on rows that were dropped, the first golds that are a guess, and system prompts; none where there
        is nothing to say."""
        sentences = []
        if self.dropped:
            reasons = ", ".join(f"{count:,} {why}" for why, count in self.dropped.items())
            sentences.append(f"dropped {counted(sum(self.dropped.values()), 'row')}: {reasons}")
        if self.guessed:
            sentences.append(f"{counted(len(self.guessed), 'gold')} guessed: {some_of(self.guessed)}")
        return [*sentences, *([self.systems] if self.systems else [])]

    def lines(self) -> list[str]:
        """Lines for people on what was read: what was lost, how many golds were changed, and the first rows."""
        changed = f"golds that are only a part of their cell: {self.changed:,} of {len(self.problems):,}"
        lines = [*self.losses(), *([changed] if self.changed else []), *self.remarks]
        for problem in self.problems[:_SHOWN]:
            text = " ".join(problem.prompt.split())
            lines.append(f"  {spelt(text[:_LINE])}{'…' if len(text) > _LINE else ''} → {spelt(problem.answer)}")
        return lines


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns by what they hold. before, behind: what belongs to the statement, too. rewarded: those that rewards are
    given, whatever else they are."""

    problem: str
    answer: str | None
    id: str | None
    family: str | None
    system: str | None
    before: str | None
    behind: str | None
    choices: tuple[str, ...]
    rewarded: tuple[str, ...]
    pictures: tuple[str, ...]
    unused: tuple[str, ...]

    def meanings(self) -> Iterator[tuple[str, str]]:
        """Each column, and what it becomes."""
        if self.before:
            yield self.before, "problem, its beginning"
        parts = ["problem", *(["answer"] if self.problem == self.answer else [])]
        if self.problem == self.system:
            parts = ["system prompt", *parts]
        elif self.system:
            yield self.system, "system prompt"
        yield self.problem, listed(parts)
        if self.behind:
            yield self.behind, "problem, its end"
        yield from ((column, "choices, below the problem") for column in self.choices)
        if self.answer and self.problem != self.answer:
            yield self.answer, "answer"
        yield from ((column, what) for column, what in ((self.id, "id"), (self.family, "family")) if column)
        yield from ((column, "given to rewards (data.columns)") for column in self.rewarded)
        yield from ((column, "not read: a row with a picture or a sound is dropped") for column in self.pictures)
        yield from ((column, "not used") for column in self.unused)


@dataclass(frozen=True, slots=True)
class _RowParts:
    """What a row says before the whole set decides how choices are answered. name: where it has no id of its own.
    changes: column and words of each."""

    name: str
    id: str | None
    statement: str
    family: str
    answer: str
    choices: tuple[Choice, ...]
    changes: tuple[tuple[str, str], ...]
    rewarded: Mapping[str, Any]
    system: str


def read_data(
    name: str, fields: Mapping[str, str] | None = None, columns: Sequence[str] = (), most: int | None = 5
) -> ReadData:
    """The problems of a user's own data.

    fields: column of each of `FIELDS`, where its name does not say it, and the `ENCODING` of a table. columns: those
    that problems keep for rewards; with them, data needs no answers. JSON lines with `id`, `problem` and `answer` are
    taken whole or not at all (`sources.read_problem_file`; most: mistakes that are named), unless columns are kept.

    Raises UserError for what is not there or cannot be read, columns that are not found, and data without a single
    problem."""
    field_columns = dict(fields or {})
    encoding = field_columns.pop(ENCODING, None)
    for key in field_columns:
        if key not in FIELDS:
            raise unknown_name("field", key, (*FIELDS, ENCODING), where=f"data.fields.{key}")
    if encoding and not is_data_file(name):
        raise UserError(f"data.fields.{ENCODING} is for CSV and TSV files", where=name, fix="leave it out")
    if name.startswith(GYM):
        return _gym(name)
    if not is_data_file(name):
        return _chosen(_hub_rows(name), name, field_columns, columns)
    path = Path(name).expanduser()
    if not path.is_file():
        what = "is a folder, not a file of problems" if path.is_dir() else "no such file"
        raise UserError(what, where=str(path), fix="a file of problems: " + ", ".join(DATA_SUFFIXES))
    if path.suffix.lower() == ".jsonl" and not fields and not columns and not _foreign(path):
        meanings = tuple((name, name, "") for name in ("id", "problem", "answer"))
        return ReadData(tuple(read_problem_file(path, most)), meanings)
    state = path.stat()
    version = (state.st_size, state.st_mtime_ns, state.st_ino)
    return _file(path, tuple(sorted(field_columns.items())), encoding, tuple(columns), version)


def _foreign(path: Path) -> bool:
    """Tell whether a file has more to read than `id`, `problem` and `answer`: other words in its first line; choices,
    pictures or reasoning in any."""
    text = path.read_bytes()
    try:
        first = parse_json(next((line for line in text.split(b"\n") if line.strip()), b""))
    except ValueError:
        return False
    if not isinstance(first, Mapping):
        return False
    if "problem" not in first:
        return _has_problem(first) or b'"problem"' not in text
    return "id" not in first or "answer" not in first or bool(choice_columns(list(first)) or _MORE.search(text))


def _has_problem(row: Mapping[str, Any]) -> bool:
    by_name = {spelled(column): column for column in row}
    return any(_at(row, by_name.get(spelled(name), name)) is not None for name in _NAMES["problem"])


@lru_cache(maxsize=8)
def _file(
    path: Path, fields: tuple[tuple[str, str], ...], encoding: str | None, columns: tuple[str, ...], _version: Any
) -> ReadData:
    """Kept while the file is the same: a plan asks for it in every row of its table."""
    rows, remarks = read_rows(path, _has_problem, encoding)
    read = _chosen(rows, str(path), dict(fields), columns)
    return replace(read, remarks=(*remarks, *read.remarks))


def _hub_rows(name: str) -> list[Any]:
    """Rows of a set of the hub. Raises UserError where `datasets` is missing or does not load it."""
    match = HUB_DATA.fullmatch(name)
    assert match
    if importlib.util.find_spec("datasets") is None:
        raise UserError("the package `datasets` is not installed", where=name, fix=install_line("hub"))
    import datasets

    try:
        loaded = datasets.load_dataset(match["path"], match["config"], split=match["split"] or "train")
        return table_rows(loaded.with_format("arrow")[:])
    except Exception as error:  # many kinds: no network, unknown set, gated set, unknown split
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        fix = "ORG/NAME/CONFIG:SPLIT, as in openai/gsm8k/main:train; check the network and HF_TOKEN"
        raise UserError(f"could not load the data set: {reason}", where=name, fix=fix) from error


def _at(row: Any, column: str) -> Any:
    """The value of a column, dots going into mappings; None where it is not there."""
    value = row
    for part in [column] if isinstance(row, Mapping) and column in row else column.split("."):
        value = structure(value)  # a table keeps a mapping as text
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _columns(rows: Sequence[Any], where: str, fields: Mapping[str, str], rewarded: Sequence[str]) -> _Columns:
    """What the columns hold; an answer that only a conversation holds has the column of the problem. Raises UserError
    where none holds a problem, where none holds an answer and rewards are given no column either, and for a column that
    is not there."""
    if not rows:
        raise UserError("no rows", where=where, fix="a row for each problem")
    first = [row for row in rows[:_LOOKED] if isinstance(row, Mapping)]
    columns = list(dict.fromkeys(key for row in rows if isinstance(row, Mapping) for key in row))
    by_name = {spelled(column): column for column in reversed(columns)}
    choices = choice_columns(columns)
    names = _NAMES | ({"answer": (*_NAMES["answer"], *_CHOSEN)} if choices else {})
    there = f"columns: {', '.join(columns) or 'none'}"
    fix = f"{there}; data.fields.problem=COLUMN, data.fields.answer=COLUMN"
    for column in rewarded:
        if column not in columns:
            raise UserError(f"no column {column!r}", where=f"data.columns of {where}", fix=there)

    def named(name: str) -> str:
        return name if name in columns else by_name.get(spelled(name), name)

    chosen: dict[str, str] = {}
    for key, column in fields.items():
        chosen[key] = named(column)
        if not any(_at(row, chosen[key]) is not None for row in first):
            raise UserError(f"no column {column!r}", where=where, fix=fix)
    for key, likely in names.items():
        for column in map(named, likely):
            if key not in chosen and any(_at(row, column) not in (None, "", []) for row in first):
                chosen[key] = column

    def none_is(key: str) -> str:
        if empty := [column for column in map(named, names[key]) if column in columns]:
            looked_at = "every row" if len(rows) <= _LOOKED else f"the first {_LOOKED} rows"
            return f"; empty in {looked_at}: {', '.join(empty)}"
        return f": none is called {', '.join(names[key])}"

    if "problem" not in chosen:
        raise UserError(f"no column holds a problem{none_is('problem')}", where=where, fix=fix)
    if "answer" not in chosen and not rewarded:
        if not any(_is_conversation(_at(row, chosen["problem"])) for row in first):
            fix += "; where rows have none, data.columns=[COLUMN] with a reward of your own (data.reward)"
            raise UserError(f"no column holds an answer{none_is('answer')}", where=where, fix=fix)
        chosen["answer"] = chosen["problem"]
    choices = (chosen["choices"],) if "choices" in chosen else choices
    before, behind, problem_name = None, None, "" if "problem" in fields else spelled(chosen["problem"])
    if problem_name == "instruction":
        behind = by_name.get("input")
    elif problem_name in ("question", "problem", "query"):
        before = next((by_name[name] for name in _BEFORE if name in by_name), None)
    used = {
        *chosen.values(),
        *(column.split(".")[0] for column in chosen.values()),
        before,
        behind,
        *choices,
        *rewarded,
    }
    pictures = [column for column in columns if column not in used and is_picture_column(column)]
    unused = [column for column in columns if column not in used and column not in pictures]
    of_row = (chosen["problem"], chosen.get("answer"), chosen.get("id"), chosen.get("family"), chosen.get(SYSTEM))
    return _Columns(*of_row, before, behind, choices, tuple(rewarded), tuple(pictures), tuple(unused))


def _is_conversation(value: Any) -> bool:
    try:
        return bool(turns(value))
    except ValueError:
        return True


def _chosen(rows: Iterable[Any], where: str, fields: Mapping[str, str], rewarded: Sequence[str]) -> ReadData:
    """The problems of rows. Raises UserError where there is none, and for choices whose answers cannot be told."""
    rows = list(rows)
    columns = _columns(rows, where, fields, rewarded)
    stem = Path(where).stem if is_data_file(where) else where.partition(":")[0].replace("/", "_")
    row_parts: list[_RowParts] = []
    dropped: Counter[str] = Counter()
    for index, row in enumerate(rows):
        try:
            row_parts.append(_row(row, columns, f"{stem}-{index}"))
        except ValueError as error:
            dropped[str(error)] += 1
    chosen = iter(letters([(row.name, row.answer, row.choices) for row in row_parts if row.choices], where))
    problems: list[Problem] = []
    ids: set[str] = set()
    changes: Counter[tuple[str, str]] = Counter()
    guessed, changed = [], 0
    for row in row_parts:
        try:
            if columns.answer is None:
                gold = Gold("")
            else:
                gold = _of_choices(row.answer, *next(chosen)) if row.choices else final_answer(row.answer)
        except ValueError as error:
            dropped[str(error)] += 1
            continue
        name = row.id if row.id is not None and row.id not in ids else row.name
        ids.add(name)
        problems.append(Problem(name, row.statement, gold.text, row.family, row.rewarded, row.system))
        cuts = [(columns.answer, cut) for cut in gold.cuts if columns.answer]
        changes.update(dict.fromkeys([*row.changes, *cuts]).keys())
        changed += bool(gold.cuts)
        if gold.guessed:
            guessed.append(f"{name} ({gold.text}; {', '.join(gold.cuts)})")
    if not problems:
        reasons = ", ".join(f"{count:,} {why}" for why, count in dropped.items()) or "no rows"
        fix = "data.fields.problem=COLUMN, data.fields.answer=COLUMN; \\boxed{} or #### marks the answer of a solution"
        raise UserError(f"no problem in it: {reasons}", where=where, fix=fix)
    repeated = len(problems) - len({problem.prompt for problem in problems})
    remarks = [f"{counted(repeated, 'problem')} more than once"] if repeated else []
    table = []
    for column, meaning in columns.meanings():
        words = [f"{what}: {counted(count, 'row')}" for (of, what), count in changes.items() if of == column]
        table.append((column, meaning, "; ".join(words)))
    systems, left_out = "", changes[columns.problem, SYSTEM_LEFT_OUT]
    if columns.system:
        systems = _systems(problems, f"data.fields.{SYSTEM}={columns.system} of {where}")
    elif left_out:
        systems = f"{SYSTEM_LEFT_OUT} of {counted(left_out, 'row')}: data.fields.{SYSTEM}={columns.problem} keeps them"
    of_rows = (dict(dropped), tuple(remarks), changed, tuple(guessed), systems)
    return ReadData(tuple(problems), tuple(table), *of_rows)


def _systems(problems: Sequence[Problem], where: str) -> str:
    """Say which system prompts problems have, and what benchmarks are asked with then. Raises UserError where none has
    any."""
    texts = Counter(problem.system for problem in problems if problem.system)
    if not texts:
        fix = f"a column that holds some, or leave data.fields.{SYSTEM} out"
        raise UserError("no row has a system prompt", where=where, fix=fix)
    if shared_system(problems):
        return "one system prompt for all problems; benchmarks are asked with it, too"
    what = f"{counted(len(texts), 'system prompt')} in {texts.total():,} of {counted(len(problems), 'problem')}"
    return f"{what}; benchmarks are asked without any"


def shared_system(problems: Sequence[Problem]) -> str:
    """The system prompt that all problems have; empty where they differ, or have none."""
    first, *others = {problem.system for problem in problems} or {""}
    return "" if others else first


def _row(row: Any, columns: _Columns, name: str) -> _RowParts:
    """What a row says. Raises ValueError with the reason why it is no problem."""
    text, left_out = statement(_at(row, columns.problem), system_kept=columns.system == columns.problem)
    changes = [(columns.problem, words) for words in left_out]
    system = system_prompt(_at(row, columns.system)) if columns.system else ""
    for column in filter(None, (columns.before, columns.behind)):
        part = _at(row, column)
        if part is None or part == "":
            continue
        if not isinstance(part, str):
            raise ValueError(f"whose {column} is no text")
        text = "\n\n".join((part.strip(), text) if column == columns.before else (text, part.strip())).strip()
        changes.append((column, "joined to the problem"))
    choices = choices_of({column: _at(row, column) for column in columns.choices})
    check_text([text, *(choice.text for choice in choices)], [row[key] for key in columns.pictures if key in row])
    question = with_choices(text, choices)
    if question != text:
        changes += [(column, "listed below the problem") for column in columns.choices]
    answer = _answered(_at(row, columns.answer), columns.answer) if columns.answer else ""
    rewarded = json.loads(json.dumps({column: row.get(column) for column in columns.rewarded}, default=str))
    row_id = _at(row, columns.id) if columns.id else None
    family = _at(row, columns.family) if columns.family else None
    return _RowParts(
        name,
        None if row_id is None else str(row_id),
        question,
        str(family or ""),
        answer,
        choices,
        tuple(changes),
        rewarded,
        system,
    )


def _answered(value: Any, column: str) -> str:
    """The text that holds an answer. Raises ValueError with the reason why there is none."""
    if messages := turns(value):
        replies = [turn.text for turn in messages if turn.role == "assistant" and turn.text.strip()]
        if not replies:
            raise ValueError("without an answer")
        return replies[-1]
    listed = structure(value)
    if isinstance(listed, list) and (listed is value or all(isinstance(answer, str) for answer in listed)):
        if len(listed) != 1:
            raise ValueError("with several answers" if listed else "without an answer")
        value = listed[0]
    if isinstance(value, Mapping) and value:
        fix = f"data.fields.answer={column}.KEY with one of {', '.join(map(str, value))}"
        raise ValueError(f"whose answer has keys and values: {fix}")
    if isinstance(value, float) and value.is_integer() and not hasattr(value, "text"):
        value = int(value)
    if value is None:
        raise ValueError("without an answer")
    return text_of(value, "whose answer")


def _of_choices(answer: str, letter: str, reading: str) -> Gold:
    """The letter of a choice as the gold. Raises ValueError where the answer is none of the choices."""
    if not letter:
        raise ValueError("whose answer is none of its choices")
    return Gold(letter, () if answer.strip() == letter else (f"{reading}, written as its letter",))


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
    dataset = reasoning_gym.create_dataset(task, size=GYM_SIZE, seed=0)
    problems = [
        Problem(f"{task}-{index}", entry["question"], str(entry["answer"]), task) for index, entry in enumerate(dataset)
    ]
    return ReadData(tuple(problems), (("question", "problem", ""), ("answer", "answer", "")))
