"""A method as its file: the formula, its constants with their sources, and what it changes of another."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tepo.common import paths, trust
from tepo.common.errors import UserError, unknown_name
from tepo.common.plugin_files import FOLDER, foreign_files, kept_files, read_function_files
from tepo.common.schema import Location
from tepo.common.schema.document import load
from tepo.common.schema.reader import WrittenNumber
from tepo.formula.formula import Formula
from tepo.formula.syntax import Place

DEFAULT = "tepo"
BASELINE = "grpo_dapo"  # TEPO's baseline: Table 1, row GRPO/DAPO
KEYS = ("about", "idea", "like", "formula", "average", "keep", "constants", "departs", "functions")

IDEAS = {  # what a method changes of GRPO/DAPO, most of all
    "advantage": "what a response, or a token, is worth",
    "ratio": "how far the policy has moved",
    "clip": "what becomes of a token whose ratio is large or small",
    "weight": "which tokens count, and how much",
    "penalty": "what is added to the policy term: a KL, an entropy",
    "average": "how tokens and responses are averaged",
    "correction": "the gap between the sampler's log-probs and the trainer's",
}
_NAME = re.compile(r"[\w-][\w.-]*")  # of a file without its .yaml
_YEAR = re.compile(r"\b(?:(\d\d)\d\d\.\d{5}|(19\d\d|20\d\d))\b")  # of an arXiv number, or as itself


# by all that they are made of, and as the configuration of a run has them: every one of a study asks for one
_FORMULAS: dict[str, Formula] = {}


@dataclass(frozen=True)
class Constant:
    """A number of a formula, and where it is from."""

    value: float
    source: str


@dataclass(frozen=True)
class Row:
    """A method as a person wrote it, with what it inherits."""

    name: str
    about: str
    like: str  # the name of the row that it changes, empty for none
    lines: Mapping[str, str]
    constants: Mapping[str, Constant]
    average: str
    keep: str
    departs: tuple[str, ...]  # where it is not what its paper prints
    own: frozenset[str]  # names of lines and constants in its own file, or set
    where: Mapping[str, str] = field(default_factory=dict)
    base: "Row | None" = None  # the row that it is like
    functions: Mapping[str, str] = field(default_factory=dict)  # Python files of a user's own, by name
    idea: str = ""  # one of IDEAS; empty in a file that does not say it

    @property
    def year(self) -> int | None:
        """The year of its paper, by `about` or by that of the row that it is like."""
        if match := _YEAR.search(self.about):
            return int(match[2] or f"20{match[1]}")
        return self.base.year if self.base else None

    @cached_property
    def formula(self) -> Formula:
        """The formula. Raises UserError for what is wrong in it."""
        parts = self.parts
        if parts["functions"]:  # code, which may change
            return Formula(**parts)
        key, lines, constants = repr(parts), dict(parts["lines"]), parts["constants"]
        mapping = {"name": self.name, "formula": lines, "constants": constants}
        mapping |= {"average": self.average, "keep": self.keep}
        formula = _FORMULAS.get(key) or _FORMULAS.get(repr(mapping)) or Formula(**parts)
        _FORMULAS[key] = _FORMULAS[repr(formula.mapping)] = formula
        return formula

    @property
    def parts(self) -> dict[str, Any]:
        """Fields of a formula by their names."""
        values = {name: constant.value for name, constant in self.constants.items()}
        shared = ("name", "lines", "average", "keep", "where", "own", "functions")
        return {name: getattr(self, name) for name in shared} | {"constants": values}

    def changed(self, changes: Mapping[str, Any]) -> "Row":
        """The row with constants, lines, `average` or `keep` set, or files of `functions` added. Raises UserError for a
        name that it has not."""
        lines, constants, added = dict(self.lines), dict(self.constants), dict[str, str]()
        average, keep = self.average, self.keep
        for name, value in changes.items():
            where = f"objective.{name}={value}"
            if name == "average":
                average = str(value)
            elif name == "keep":
                keep = "" if value in (None, "null", "all") else str(value)
            elif name == "functions":
                at = Location(lambda _: f"objective.functions={changes['functions']}")
                added = read_function_files(value, Path(), at)
            elif name in constants:
                constants[name] = Constant(_number(value, where), "set here")
            elif name in lines or (isinstance(value, str) and name.isidentifier() and not _is_number(value)):
                lines[name] = str(value)
            else:
                choices = [*constants, *lines, "average", "keep", "functions"]
                raise Place(name, where, 10, 10 + len(name)).unknown("name of the formula", name, choices)
        _ = self.formula  # all that it names is read; of what is inherited now, some may fall away
        own_names = {*changes, *added} - {"average", "keep", "functions"}
        where_ = dict(self.where) | {name: f"objective.{name}" for name in changes}
        where_ |= dict.fromkeys(added, "objective.functions")
        row = replace(self, average=average, keep=keep, own=frozenset(own_names), where=where_)
        return replace(row, lines=lines, constants=constants, functions={**self.functions, **added})

    def with_exact_kl(self) -> "Row":
        """The row with the exact KL over the vocabulary in its line `kl`, where that is k3 of the sampled token."""
        exact = {"k3(d)": "kl_old", "k3(logp - logp_initial)": "kl_initial"}.get(self.lines.get("kl", ""))
        return replace(self, lines={**self.lines, "kl": exact}) if exact else self


def names() -> list[str]:
    """Names of the rows that ship with tepo, and of those in `objective/` of TEPO_PATH."""
    return paths.names("objective")


def labels() -> dict[str, str]:
    """What studies call an objective in their rows, where they set nothing else in it, for advice to somebody who types
    what a table prints. A study that cannot be read has none."""
    objectives: dict[str, str] = {}
    for path in (file for kind in paths.STUDIES for file in paths.files(kind).values()):
        with suppress(UserError):
            rows = load(path).data.get("rows")
            for row in rows if isinstance(rows, list) else ():
                if isinstance(row, Mapping) and {"label", "objective"} <= row.keys() and "overrides" not in row:
                    objectives.setdefault(str(row["label"]), str(row["objective"]))
    known_names = names()
    return {label: name for label, name in objectives.items() if name in known_names}


def load_row(source: str | Path, changes: Mapping[str, Any] | None = None) -> Row:
    """The row of a name (`-` and `_` are the same), or of a file: a Path, or a text that ends with `.yaml`. changes:
    constants, lines, `average` and `keep` that are set in it.

    Raises UserError for an unknown name, key or value, with the file and its line."""
    row = _read(source, ())
    return row.changed(changes) if changes else row


def row_of(mapping: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Row:
    """The row of a mapping like a file of one, or like the objective in the configuration of a run, which has a
    `name`."""
    entries = dict(mapping)
    name = str(entries.pop("name", "") or "custom")
    row = replace(_row(entries, Location(lambda _: f"objective {name}"), Path("custom"), ()), name=name)
    return row.changed(changes) if changes else row


def present_row(name: str) -> Row | None:
    """The row that a name stands for today; None where it stands for none that can be read, as after a run of it."""
    try:
        row = load_row(name) if name in names() else None
        _ = row and row.formula
    except UserError:
        return None
    return row


def kept_row(objective: Mapping[str, Any], run: Path) -> Row:
    """The row of a run's configuration, whose functions are then executed. Raises UserError where its Python files are
    not the caller's own and he does not trust them."""
    if files := kept_files(objective):
        objective = {**objective, "functions": files}  # read once: what was looked at is what is executed
    if strange := foreign_files(objective):
        what = f"the run keeps Python that is not in {FOLDER}: {', '.join(strange)}"
        fix = f"read it there (`full`, `objective`, `functions`); a copy in {FOLDER} is yours"
        trust.ask(what, str(run / "config.json"), fix)
    return row_of(objective)


def _read(source: str | Path, chain: tuple[str, ...]) -> Row:
    if isinstance(source, str) and not source.endswith((".yaml", ".yml")):
        try:
            source = paths.find("objective", source)
        except UserError:
            place = chain[-1] if chain else ""
            raise unknown_name("objective", str(source), names(), where=place, labels=labels()) from None
    path = Path(source).expanduser()
    if str(path) in chain:
        circle = " → ".join(Path(file).stem for file in (*chain, str(path)))
        raise UserError(f"`like` leads back to the same method: {circle}", where=str(path))
    document = load(path)
    return _row(document.data, document.at, path, (*chain, str(path)))


def _inherited(like: Any, path: Path, at: Location) -> Path | str:
    """The file, or the name, of the row that the one in `path` is like; its own name is that of the shipped one. Raises
    UserError for what is no name, and for a link: a method reads its folder and the methods that have names, so that
    somebody else's folder brings nothing in from elsewhere."""
    if not isinstance(like, str) or not _NAME.fullmatch(like) or like.endswith((".yaml", ".yml")):
        fix = "like: NAME of a method that ships, or of NAME.yaml in the same folder"
        raise at.error(f"like is the name of a method, not {like!r}", fix)
    shipped = paths.shipped("objective") / f"{path.stem}.yaml"
    if like.replace("-", "_") == path.stem.replace("-", "_") and shipped.is_file():
        return shipped
    beside = path.parent / f"{like}.yaml"
    if beside.is_symlink():
        raise at.error(f"{beside} is a link", "put the file itself there")
    return beside if beside.is_file() else like


def _row(entries: Mapping[str, Any], at: Location, path: Path, chain: tuple[str, ...]) -> Row:
    for key in entries:
        if key not in KEYS:
            raise at.at(str(key)).unknown("key of an objective", key, KEYS)
    like = entries.get("like") or ""
    lines, constants = _lines(entries, at.at("formula")), _constants(entries, at.at("constants"))
    base = _read(_inherited(like, path, at.at("like")), chain) if like else None
    named = entries.get("functions")
    files = {} if named is None else read_function_files(named, path.parent, at.at("functions"))
    own_names = frozenset({*lines, *constants, *files})
    where = {name: str(at.at("formula", name)) for name in lines}
    where |= {name: str(at.at("constants", name)) for name in constants} | {"": str(at)}
    where |= {key: str(at.at(key)) for key in ("average", "keep") if key in entries}
    where |= dict.fromkeys(files, str(at.at("functions")))
    average = str(entries.get("average", base.average if base else "tokens"))
    keep = str(entries.get("keep", base.keep if base else ""))
    departs = entries.get("departs", [])
    if not isinstance(departs, list) or not all(isinstance(text, str) for text in departs):
        raise at.at("departs").error("a list of sentences", 'departs: ["what the paper prints; what is here"]')
    if base:
        inherited = {name: text for name, text in base.lines.items() if name not in constants}
        base_constants = {name: constant for name, constant in base.constants.items() if name not in lines}
        lines, constants, where = inherited | lines, base_constants | constants, dict(base.where) | where
        files = {**base.functions, **files}
    about, idea = str(entries.get("about", "")), str(entries.get("idea", ""))
    if idea and idea not in IDEAS:
        raise at.at("idea").unknown("idea", idea, IDEAS)
    return Row(
        path.stem, about, like, lines, constants, average, keep, tuple(departs), own_names, where, base, files, idea
    )


def _lines(row: Mapping[str, Any], at: Location) -> dict[str, str]:
    """The lines of the formula. Raises UserError for the traps of YAML."""
    expressions = row.get("formula", {})
    if not isinstance(expressions, Mapping):
        raise at.error("the formula is a mapping of names to expressions", "formula: and below it lines `J: …`")
    line = before = ""
    for name, text in expressions.items():
        if text is None and before.count("(") > before.count(")"):  # {J: min(w*A, b)}
            whole = ", ".join([before, *(str(key) for key, rest in expressions.items() if rest is None)])
            place = Place(line, whole, len(before), len(before) + 1, str(at.at(line)))
            raise place.error("YAML splits at this comma within {…}", f'quotes: {line}: "{whole}"')
        if text is None or isinstance(text, bool) or not isinstance(text, str | int | float):
            fix = "write one, in quotes where YAML reads it otherwise"
            raise at.at(str(name)).error(f"{name} is no expression", fix)
        line, before = str(name), str(text)
    written = {name: text.text if isinstance(text, WrittenNumber) else text for name, text in expressions.items()}
    return {str(name): str(text) for name, text in written.items()}


def _constants(row: Mapping[str, Any], at: Location) -> dict[str, Constant]:
    entries = row.get("constants", {})
    if not isinstance(entries, Mapping):
        raise at.error("constants are a mapping of names to numbers", "beta: {value: 0.001, source: …}")
    constants = {}
    for name, written in entries.items():
        place, parts = at.at(str(name)), written if isinstance(written, Mapping) else {"value": written}
        if extra := set(parts) - {"value", "source"}:
            raise place.unknown("key of a constant", min(map(str, extra)), ("value", "source"))
        constants[str(name)] = Constant(_number(parts.get("value"), str(place)), str(parts.get("source", "")))
    return constants


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(value: Any, where: str) -> float:
    if isinstance(value, str) and _is_number(value):
        value = float(value)  # YAML takes 3e-4 for a text
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise UserError(f"{value!r} is no number", where=where, fix="a number such as 0.2 or 3.0e-4")
    text = value.text if isinstance(value, WrittenNumber) else ""
    if text and not (_is_number(text) and float(text) == value):
        raise UserError(f"YAML reads {text} as {value:g}", where=where, fix="plain digits, without a 0 in front or a :")
    return float(value)


def changed_lines(row: Row, base: Row) -> dict[str, tuple[str, str]]:
    """Each line, constant, average and filter that two rows do not share, by its name, as a person writes it: that of
    the row, and that of the other one; empty where it is not read."""
    row_texts, base_texts = _read_by(row), _read_by(base)
    both = {name: (row_texts.get(name, ""), base_texts.get(name, "")) for name in row_texts | base_texts}
    return {name: (ours, theirs) for name, (ours, theirs) in both.items() if ours.split() != theirs.split()}


def _read_by(row: Row) -> dict[str, str]:
    """The text of each line and constant that a row reads, of its average and of what it keeps."""
    read = row.formula.read
    texts = {name: f"{name}: {text}" for name, text in row.lines.items() if name in read}
    texts |= {name: f"{name} = {constant.value:g}" for name, constant in row.constants.items() if name in read}
    return texts | {"average": f"average: {row.average}", "keep": f"keep: {row.keep or 'all'}"}
