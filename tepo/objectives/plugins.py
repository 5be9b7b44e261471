"""Kinds that a user's Python file adds to the axes.

The file is plain Python. It defines frozen dataclasses with the members that the Protocol of their axis lists, and
names them itself: `KINDS = {"surrogate": {"my_gate": MyGate}}`. There is no registry: an objective that names the file
has its kinds, and no other one does. A mistake in the file is a UserError that names its line."""

import ast
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, get_args, get_type_hints

from tepo.common.errors import UserError
from tepo.objectives.axes.advantage import Advantage
from tepo.objectives.axes.aggregation import Aggregation
from tepo.objectives.axes.correction import Correction
from tepo.objectives.axes.importance_ratio import Ratio
from tepo.objectives.axes.overlong import Overlong
from tepo.objectives.axes.penalty import Penalty
from tepo.objectives.axes.surrogate import Surrogate
from tepo.objectives.axes.weight import Weight

Kinds = Mapping[str, Mapping[str, type]]  # axis -> name -> class
PROTOCOLS: dict[str, type] = {
    "overlong": Overlong,
    "advantage": Advantage,
    "ratio": Ratio,
    "surrogate": Surrogate,
    "weight": Weight,
    "correction": Correction,
    "penalty": Penalty,
    "aggregation": Aggregation,
}
_EXAMPLE = 'KINDS = {"surrogate": {"my_gate": MyGate}}'
_PAGE = "docs/library.md has a complete example"


def with_own(shipped: Kinds, files: Mapping[str, str]) -> dict[str, dict[str, type]]:
    """All kinds of the axes: the shipped ones and those of the files (name -> text). Raises UserError for a broken
    file, and for a name that is there already."""
    kinds = {axis: dict(there) for axis, there in shipped.items()}
    for name, text in files.items():
        for axis, added in kinds_of(name, text).items():
            for kind, made in added.items():
                if kind in kinds[axis]:
                    taken = "shipped" if kind in shipped[axis] else "other file's"
                    what, where = f"the name of a {taken} kind: {axis} {kind!r}", f"{name}:{_line(text, 'KINDS')}"
                    raise UserError(what, where=where, fix="give yours a name of its own")
                kinds[axis][kind] = made
    return kinds


@lru_cache(maxsize=256)
def kinds_of(name: str, text: str) -> Kinds:
    """The kinds that a file defines, checked. The same text gives the same classes."""
    module = types.ModuleType(f"tepo_own_kinds_{sha256(f'{name}:{text}'.encode()).hexdigest()[:16]}")
    module.__file__ = name
    sys.modules[module.__name__] = module  # where dataclasses look up the names in their annotations
    with located({name: text}):
        exec(compile(text, name, "exec"), module.__dict__)  # the user's own program
    kinds = getattr(module, "KINDS", None)
    _check_shape(kinds, name, text)
    assert kinds is not None
    for axis, added in kinds.items():
        for kind, made in added.items():
            _check_class(made, axis, f"{axis} {kind!r}", f"{name}:{_line(text, made.__name__)}")
            try:
                get_type_hints(made)  # what the strict reader needs
            except Exception as error:
                where = f"{name}:{_line(text, made.__name__)}"
                raise UserError(f"a type of {made.__name__}: {error}", where=where, fix=_PAGE) from None
    return kinds


@contextmanager
def located(files: Mapping[str, str]) -> Iterator[None]:
    """Turn any error that comes out of one of the files (name -> text) into a UserError with its line."""
    try:
        yield
    except UserError:
        raise
    except SyntaxError as error:
        if error.filename not in files:
            raise
        raise UserError(f"not valid Python: {error.msg}", where=f"{error.filename}:{error.lineno}", fix=_PAGE) from None
    except Exception as error:
        where, trace = "", error.__traceback__
        while trace is not None:  # the innermost call in one of the files
            if trace.tb_frame.f_code.co_filename in files:
                where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
            trace = trace.tb_next
        if not where:
            raise
        raise UserError(f"{type(error).__name__}: {error}", where=where, fix=_PAGE) from error


def _line(text: str, name: str, member: str = "") -> int:
    """The line where a class, or a member of it, is defined or a name is given its value; 1 where there is none."""
    found = _named(ast.parse(text).body, name)
    inner = _named(getattr(found, "body", []), member)
    return getattr(inner or found, "lineno", 1)


def _named(nodes: list[ast.stmt], name: str) -> ast.stmt | None:
    for node in nodes:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if name and (getattr(node, "name", None) == name or name in {getattr(each, "id", None) for each in targets}):
            return node
    return None


def place_of(part: object, files: Mapping[str, str], member: str = "") -> str:
    """`file:line` of the class of an own kind, or of a member of it; empty for a shipped kind."""
    module = sys.modules.get(type(part).__module__)
    name = getattr(module, "__file__", None) or ""
    if name not in files or not type(part).__module__.startswith("tepo_own_kinds_"):
        return ""
    return f"{name}:{_line(files[name], type(part).__name__, member)}"


def _check_shape(kinds: Any, name: str, text: str) -> None:
    where = f"{name}:{_line(text, 'KINDS')}"
    if not isinstance(kinds, dict) or not kinds:
        raise UserError("the file names no kinds", where=where, fix=f"end it with {_EXAMPLE}")
    for axis, added in kinds.items():
        if axis not in PROTOCOLS:
            raise UserError(f"unknown axis {axis!r} in KINDS", where=where, fix=f"valid: {', '.join(PROTOCOLS)}")
        if not isinstance(added, dict) or not all(isinstance(kind, str) for kind in added):
            raise UserError(f"KINDS[{axis!r}] is no mapping of names to classes", where=where, fix=_EXAMPLE)
        for kind, made in added.items():
            if not isinstance(made, type) or not is_dataclass(made):
                raise UserError(f"{axis} {kind!r} is no dataclass", where=where, fix="@dataclass(frozen=True)")


def _check_class(made: Any, axis: str, what: str, where: str) -> None:
    """A frozen dataclass whose fields are options, with the members of its axis."""
    if not made.__dataclass_params__.frozen:
        raise UserError(f"{what} is not frozen", where=where, fix="@dataclass(frozen=True)")
    for part in fields(made):
        if not part.metadata.get("meaning"):
            fix = f'{part.name}: float = option(0.1, "what it does", source="a choice")'
            raise UserError(f"{what}: the field {part.name!r} does not say what it means", where=where, fix=fix)
    own = {part.name for part in fields(made)}
    for member, wanted in members(axis).items():
        if member not in own and not hasattr(made, member):
            raise UserError(f"{what} lacks the member {member!r}", where=where, fix=f"{_says(member, wanted)}; {_PAGE}")
        if not isinstance(wanted, property) and not _takes(getattr(made, member, None), wanted):
            raise UserError(f"{what}: {member!r} has other arguments", where=where, fix=_says(member, wanted))


def members(axis: str) -> dict[str, Any]:
    """Name -> property or function of each member that a kind of an axis has."""
    classes = [base for base in PROTOCOLS[axis].__mro__ if getattr(base, "_is_protocol", False)]
    every = [(name, value) for base in classes for name, value in vars(base).items() if not name.startswith("_")]
    return {name: value for name, value in every if isinstance(value, property) or inspect.isfunction(value)}


def _says(member: str, wanted: Any) -> str:
    """The member as its Protocol declares it."""
    if isinstance(wanted, property):
        hint = wanted.fget.__annotations__.get("return", "")
        return f"{member}: {getattr(hint, '__name__', hint)}"
    return f"def {member}({', '.join(inspect.signature(wanted).parameters)})"


def _takes(given: Any, wanted: Any) -> bool:
    if not callable(given):
        return False
    try:
        inspect.signature(given).bind(*[None] * len(inspect.signature(wanted).parameters))
    except TypeError:
        return False
    return True


def check_values(part: Any, axis: str, files: Mapping[str, str]) -> None:
    """Raises UserError for a plain member of an own kind that is of another type than its axis says."""
    where = place_of(part, files)
    if not where:
        return
    for member, wanted in members(axis).items():
        if not isinstance(wanted, property):
            continue
        hint = get_type_hints(wanted.fget)["return"]
        with located(files):
            value = getattr(part, member)
        arms = get_args(hint) or (hint,)
        plain = tuple(arm for arm in arms if isinstance(arm, type) and not getattr(arm, "_is_protocol", False))
        if len(plain) == len(arms) and not isinstance(value, (*plain, *((int,) if float in plain else ()))):
            what = f"{member!r} of {type(part).__name__} is {type(value).__name__}, not {_says('', wanted)[2:]}"
            raise UserError(what, where=where, fix=_PAGE)
