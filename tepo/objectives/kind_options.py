"""Options of every kind of every axis, as their classes declare them: the library part of `tepo explain --options`."""

import inspect
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from textwrap import wrap
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

from tepo.common.errors import unknown_name
from tepo.objectives.loading import AXES, kinds_of_axes
from tepo.objectives.members import PROTOCOLS, declared, members

_TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "none"}
_wrap = partial(wrap, break_long_words=False, break_on_hyphens=False)


class Option(NamedTuple):
    """An option of a kind. type: the words, or the numbers with their bounds, that it takes."""

    name: str
    type: str
    default: str
    meaning: str
    source: str


class KindOptions(NamedTuple):
    """A kind of an axis. meaning: what its class says of it."""

    kind: str
    meaning: str
    options: tuple[Option, ...]


class Member(NamedTuple):
    """A member that a kind of an axis has, as its `Protocol` declares it, and what a function of them returns."""

    declared: str
    meaning: str


class AxisOptions(NamedTuple):
    """An axis. meaning: what its `Protocol` says of it and of the plain members. tag: the key that names a kind."""

    axis: str
    meaning: str
    tag: str
    kinds: tuple[KindOptions, ...]
    members: tuple[Member, ...]


def options_of(axis: str, files: Mapping[str, str] | None = None) -> AxisOptions:
    """The kinds of an axis with their options. files: name and text of Python files whose kinds it may take too. Raises
    UserError for an axis that there is not."""
    if axis not in AXES:
        raise unknown_name("axis of an objective", axis, AXES)
    kinds = tuple(
        KindOptions(name, _said(made), tuple(_options(made))) for name, made in kinds_of_axes(files or {})[axis].items()
    )
    asked = tuple(Member(declared(member, wanted), _said(wanted)) for member, wanted in members(axis).items())
    return AxisOptions(axis, _said(PROTOCOLS[axis]), AXES[axis][0], kinds, asked)


def _options(made: Any) -> list[Option]:
    hints = get_type_hints(made)
    return [
        Option(
            part.name,
            _type(hints[part.name], part.metadata),
            _shown(part.default),
            part.metadata["meaning"],
            part.metadata.get("source") or "a choice",
        )
        for part in fields(made)
    ]


def _said(documented: Any) -> str:
    """The first paragraph of a docstring; a dataclass without one has its signature for one."""
    said = inspect.cleandoc(documented.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    return "" if isinstance(documented, type) and said.startswith(f"{documented.__name__}(") else said


def _type(hint: Any, metadata: Mapping[str, Any]) -> str:
    words = metadata.get("choices") or [arm for arm in get_args(hint) if isinstance(arm, str)]
    if words:
        return ", ".join(words)
    low, high = metadata.get("low"), metadata.get("high")
    bounds = "" if low is None else f" of at least {low:g}" if high is None else f" from {low:g} to {high:g}"
    first, *more = [_TYPES.get(arm, getattr(arm, "__name__", str(arm))) for arm in get_args(hint) or (hint,)]
    return " or ".join([first + bounds, *more])


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def to_text(axis: AxisOptions, width: int = 110) -> str:
    """Plain text of at most `width` columns where words allow."""
    lines = _wrap(f"{axis.axis}: {axis.meaning}", width)
    for kind in axis.kinds:
        lines += ["", f"{axis.tag}: {kind.kind}", *_indented(kind.meaning, width, 2)]
        for name, taken, default, meaning, source in kind.options:
            lines += _indented(f"{name} = {default}  ({taken})", width, 4)
            lines += _indented(f"{meaning} [{source}]", width, 8)
    lines += ["", f'A class of your own, in a file that ends with KINDS = {{"{axis.axis}": …}}, has']
    for member in axis.members:
        lines += [*_indented(member.declared, width, 2), *_indented(member.meaning, width, 6)]
    return "\n".join(lines)


def _indented(text: str, width: int, by: int) -> list[str]:
    return _wrap(text, width, initial_indent=" " * by, subsequent_indent=" " * (by + 2))


def to_markdown(axis: AxisOptions) -> str:
    """A section of a page: a table of the kinds and of the options of each."""
    lines = [
        f"### The kinds of `{axis.axis}`",
        "",
        "| kind | option | takes | default | meaning | source |",
        "|---|---|---|---|---|---|",
    ]
    for kind in axis.kinds:
        lines.append(_row(f"`{kind.kind}`", "", "", "", kind.meaning, ""))
        for name, taken, default, meaning, source in kind.options:
            lines.append(_row("", f"`{name}`", taken, f"`{default}`", meaning, source))
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
