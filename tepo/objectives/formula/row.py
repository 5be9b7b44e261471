"""A method as its file: the formula, its constants with their sources, and what it changes of another."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tepo.common.errors import UserError, unknown_name
from tepo.common.schema.document import Document, load
from tepo.objectives.formula.formula import Formula
from tepo.objectives.formula.syntax import Place

ROWS = Path(__file__).parent / "rows"
KEYS = ("about", "like", "formula", "average", "keep", "constants", "departs")


@dataclass(frozen=True)
class Constant:
    """A number of a formula, and where it is from."""

    value: float
    source: str


@dataclass(frozen=True)
class Row:
    """A method as a person wrote it. like: the row that it changes, empty for none; lines and constants: with those
    inherited; own: the names of those in its own file, or set. departs: where it is not what its paper prints. base:
    the row that it is like."""

    name: str
    about: str
    like: str
    lines: Mapping[str, str]
    constants: Mapping[str, Constant]
    average: str
    keep: str
    departs: tuple[str, ...]
    own: frozenset[str]
    where: Mapping[str, str] = field(default_factory=dict)
    base: "Row | None" = None

    @property
    def formula(self) -> Formula:
        """The formula. Raises UserError for what is wrong in it."""
        values = {name: one.value for name, one in self.constants.items()}
        return Formula(self.name, self.lines, values, self.average, self.keep, self.where, self.own)

    def changed(self, changes: Mapping[str, Any]) -> "Row":
        """The row with constants, lines, `average` or `keep` set. Raises UserError for a name that it has not."""
        lines, constants = dict(self.lines), dict(self.constants)
        average, keep = self.average, self.keep
        for name, value in changes.items():
            where = f"objective.{name}={value}"
            if name == "average":
                average = str(value)
            elif name == "keep":
                keep = str(value or "")
            elif name in constants:
                constants[name] = Constant(_number(value, where), "set here")
            elif name in lines or (isinstance(value, str) and name.isidentifier() and not _is_number(value)):
                lines[name] = str(value)
            else:
                known = [*constants, *lines, "average", "keep"]
                raise Place(name, where, 10, 10 + len(name)).unknown("name of the formula", name, known)
        _ = self.formula  # all that it names is read; of what is inherited now, some may fall away
        own = frozenset(changes) - {"average", "keep"}
        where_ = dict(self.where) | {name: f"objective.{name}" for name in changes}
        kept = replace(self, average=average, keep=keep, own=own, where=where_)
        return replace(kept, lines=lines, constants=constants)


def names() -> list[str]:
    """Names of the rows that ship."""
    return sorted(path.stem for path in ROWS.glob("*.yaml"))


def load_row(source: str | Path, changes: Mapping[str, Any] | None = None) -> Row:
    """The row of a name, or of a file. changes: constants, lines, `average` and `keep` that are set in it.

    Raises UserError for an unknown name, key or value, with the file and its line."""
    row = _read(source, ())
    return row.changed(changes) if changes else row


def _read(source: str | Path, chain: tuple[str, ...]) -> Row:
    path = Path(source) if isinstance(source, Path) or source.endswith((".yaml", ".yml")) else ROWS / f"{source}.yaml"
    if not path.exists() and path.parent == ROWS:
        raise unknown_name("objective", str(source), names(), where=chain[-1] if chain else "")
    if str(path) in chain:
        raise UserError(
            f"rows in a circle: {' like '.join(Path(one).stem for one in (*chain, str(path)))}", where=str(path)
        )
    document = load(path)
    given, at = document.data, document.at
    for key in given:
        if key not in KEYS:
            raise at.at(str(key)).unknown("key of an objective", key, KEYS)
    like = given.get("like", "")
    lines, constants = _lines(document), _constants(document)
    base = _read(_beside(path, like), (*chain, str(path))) if like else None
    own = frozenset({*lines, *constants})
    where = {name: str(at.at("formula", name)) for name in lines}
    where |= {name: str(at.at("constants", name)) for name in constants} | {"keep": str(at.at("keep"))}
    average = str(given.get("average", base.average if base else "tokens"))
    keep = str(given.get("keep", base.keep if base else ""))
    departs = given.get("departs", [])
    if not isinstance(departs, list) or not all(isinstance(one, str) for one in departs):
        raise at.at("departs").error("a list of sentences", 'departs: ["what the paper prints; what is here"]')
    if base:
        inherited = {name: text for name, text in base.lines.items() if name not in constants}
        kept = {name: one for name, one in base.constants.items() if name not in lines}
        lines, constants, where = inherited | lines, kept | constants, dict(base.where) | where
    about = str(given.get("about", path.stem))
    return Row(path.stem, about, like, lines, constants, average, keep, tuple(departs), own, where, base)


def _beside(path: Path, like: Any) -> str | Path:
    """The file that `like` names: one beside this file, else one that ships."""
    beside = path.parent / f"{like}.yaml"
    return beside if beside.exists() else str(like)


def _lines(document: Document) -> dict[str, str]:
    """The lines of the formula. Raises UserError for the traps of YAML."""
    given, at = document.data.get("formula", {}), document.at.at("formula")
    if not isinstance(given, Mapping):
        raise at.error("the formula is a mapping of names to expressions", "formula: and below it lines `J: …`")
    for name, text in given.items():
        if text is None or not str(name).isidentifier():
            fix = 'one line each, or in quotes: {J: "min(w*A, b)"}: YAML splits at the comma within {…}'
            raise at.at(str(name)).error(f"{name!r} is no name of a line", fix)
        if isinstance(text, bool) or not isinstance(text, str | int | float):
            raise at.at(str(name)).error(f"{name} is no expression", "put it in quotes")
    return {str(name): str(text) for name, text in given.items()}


def _constants(document: Document) -> dict[str, Constant]:
    given, at = document.data.get("constants", {}), document.at.at("constants")
    if not isinstance(given, Mapping):
        raise at.error("constants are a mapping of names to numbers", "beta: {value: 0.001, source: …}")
    found = {}
    for name, one in given.items():
        place = at.at(str(name))
        value, source = (one.get("value"), one.get("source", "")) if isinstance(one, Mapping) else (one, "")
        extra = set(one) - {"value", "source"} if isinstance(one, Mapping) else set()
        if extra:
            raise place.unknown("key of a constant", min(map(str, extra)), ("value", "source"))
        found[str(name)] = Constant(_number(value, str(place)), str(source))
    return found


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
    return float(value)


def changed_lines(row: Row, base: Row) -> list[tuple[str, str]]:
    """Each line, constant, average and filter that two rows do not share, as a person writes it: that of the row, and
    that of the other one; empty where it is not read."""
    here, there = _read_by(row), _read_by(base)
    both = [(here.get(name, ""), there.get(name, "")) for name in here | there]
    return [(one, other) for one, other in both if one.split() != other.split()]


def differences(row: Row, base: Row) -> list[str]:
    """The changes of a row to another one."""
    return [here for here, _ in changed_lines(row, base) if here]


def _read_by(row: Row) -> dict[str, str]:
    """The text of each line and constant that a row reads, of its average and of what it keeps."""
    read = row.formula.read
    found = {name: f"{name}: {text}" for name, text in row.lines.items() if name in read}
    found |= {name: f"{name} = {one.value:g}" for name, one in row.constants.items() if name in read}
    return found | {"average": f"average: {row.average}", "keep": f"keep: {row.keep or 'all'}"}
