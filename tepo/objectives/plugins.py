"""Kinds that a user's Python file adds to the axes.

The file is plain Python. It defines frozen dataclasses with the members that the Protocol of their axis lists, and
names them itself: `KINDS = {"surrogate": {"my_gate": MyGate}}`. There is no registry: an objective that names the file
has its kinds, and no other one does. A mistake in the file is a UserError that names its line, and so is a value that
one of its functions returns and that its axis does not ask for."""

import ast
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, get_type_hints

from tepo.common.errors import UserError
from tepo.objectives.members import PROTOCOLS, axes_of, faults, members, watched, wrong_value

Kinds = Mapping[str, Mapping[str, type]]  # axis -> name -> class
_EXAMPLE = 'KINDS = {"surrogate": {"my_gate": MyGate}}'
_PAGE = "docs/own-kinds.md has an example of each axis"


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
            _check_class(made, axis, f"{axis} {kind!r}", name, text)
            try:
                get_type_hints(made)  # what the strict reader needs
            except Exception as error:
                where = f"{name}:{_line(text, made.__name__)}"
                raise UserError(f"a type of {made.__name__}: {error}", where=where, fix=_PAGE) from None
            _watch(made, axis, name, text)
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


def _check_class(made: Any, axis: str, what: str, name: str, text: str) -> None:
    """Raises UserError unless it is a frozen dataclass whose fields are options, with the members of its axis; what it
    lacks of them is named at once."""
    where = f"{name}:{_line(text, made.__name__)}"
    if not made.__dataclass_params__.frozen:
        raise UserError(f"{what} is not frozen", where=where, fix="@dataclass(frozen=True)")
    for part in fields(made):
        if not part.metadata.get("meaning"):
            fix = f'{part.name}: float = option(0.1, "what it does", source="a choice")'
            raise UserError(f"{what}: the field {part.name!r} does not say what it means", where=where, fix=fix)
    found = faults(made, axis)
    if found:
        others = [f'KINDS = {{"{other}": …}} where it is one of that axis' for other in axes_of(made)]
        member = next((one for one in found if one in vars(made)), "")
        place = f"{name}:{_line(text, made.__name__, member)}"
        raise UserError(f"{what} {', and '.join(found.values())}", where=place, fix="; ".join([*others, _PAGE]))


def _watch(made: type, axis: str, name: str, text: str) -> None:
    """Have what the functions of a class return checked."""
    for member, wanted in members(axis).items():
        function = inspect.getattr_static(made, member, None)
        if inspect.isfunction(wanted) and inspect.isfunction(function):
            setattr(made, member, watched(function, wanted, f"{name}:{_line(text, made.__name__, member)}"))


def check_values(part: Any, axis: str, files: Mapping[str, str]) -> None:
    """Raises UserError for a plain member of an own kind that is of another type than its axis says."""
    where = place_of(part, files)
    if not where:
        return
    with located(files):
        found = [
            wrong
            for member, wanted in members(axis).items()
            if isinstance(wanted, property) and (wrong := wrong_value(part, member, wanted))
        ]
    if found:
        raise UserError(", and ".join(found), where=where, fix=_PAGE)
