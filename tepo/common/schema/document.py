"""YAML files that know their lines."""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from tepo.common.errors import UserError
from tepo.common.schema.reader import Keys, Location, WrittenFloat, WrittenInt

_DEEPEST = 50  # levels
_LARGEST = 1 << 20  # bytes, 30 times the largest file that ships
_MOST = 100_000  # values, those behind aliases and merged ones counted wherever they are used
_SHOWN = 200  # characters of a line with a mistake
_LONGEST = 300  # digits of a number, of which YAML takes those in base 60 too
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")  # no text of names and sentences
_YAML = "tag:yaml.org,2002:"
_RESOLVED = {f"{_YAML}{kind}" for kind in ("bool", "int", "float", "timestamp", "null")}


class _Twice(yaml.MarkedYAMLError):
    """A key is written twice in one mapping; plain YAML keeps the last one."""


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key written twice, and what is nested more deeply than any file of ours. Keys are text,
    on, 010 and 7e5 too, and numbers keep theirs."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > _DEEPEST:
            here = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem=f"nested more than {_DEEPEST} deep", problem_mark=here)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        keys = set[str]()
        for name in (name for name, _ in node.value if isinstance(name, yaml.ScalarNode)):
            if name.value in keys:
                raise _Twice(problem=f"the key {name.value!r} is there twice", problem_mark=name.start_mark)
            keys.add(name.value)
            if name.tag in _RESOLVED:
                name.tag = f"{_YAML}str"
        return node

    def compose_scalar_node(self, anchor: Any) -> Any:
        node = super().compose_scalar_node(anchor)
        if _CONTROL.search(node.value):
            raise yaml.MarkedYAMLError(problem="text with a control character", problem_mark=node.start_mark)
        if len(node.value) > _LONGEST and node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
            raise yaml.MarkedYAMLError(problem=f"a number of over {_LONGEST} digits", problem_mark=node.start_mark)
        return node


def _check_size(node: Any, counted: dict[int, int]) -> int:
    """The values of a node, written out. Raises a YAMLError for too many, and for a node within itself."""
    if id(node) not in counted:
        counted[id(node)] = _MOST  # of a node within itself
        below = [child for pair in node.value for child in pair] if isinstance(node, yaml.MappingNode) else node.value
        parts = [] if isinstance(node, yaml.ScalarNode) else below
        counted[id(node)] = 1 + sum(_check_size(part, counted) for part in parts)
    if counted[id(node)] > _MOST:
        problem = f"over {_MOST:,} values, where each alias is written out"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    return counted[id(node)]


def _int(loader: _Loader, node: yaml.ScalarNode) -> WrittenInt:
    return WrittenInt(loader.construct_yaml_int(node), node.value)


def _float(loader: _Loader, node: yaml.ScalarNode) -> WrittenFloat:
    return WrittenFloat(loader.construct_yaml_float(node), node.value)


_Loader.add_constructor(f"{_YAML}int", _int)
_Loader.add_constructor(f"{_YAML}float", _float)


@dataclass(frozen=True)
class Document:
    """A YAML file: the mapping it holds, and its nodes, which know their lines."""

    path: Path
    data: dict[str, Any]
    root: Any

    @property
    def at(self) -> Location:
        return Location(self._origin)

    def line(self, keys: Keys) -> int | None:
        """The line of a key, from 1; None where it is not written."""
        node, line = self.root, self.root.start_mark.line
        for key in keys:
            pairs = node.value if isinstance(node, yaml.MappingNode) else []
            below = {name.value: (name.start_mark.line, value) for name, value in pairs}
            if isinstance(node, yaml.SequenceNode):
                below = {str(index): (value.start_mark.line, value) for index, value in enumerate(node.value)}
            if str(key) not in below:
                return None
            line, node = below[str(key)]
        return int(line) + 1

    def _origin(self, keys: Keys) -> str:
        """`file:line` of a key, or of the nearest one above it that is written."""
        line = self.line(keys)
        return f"{self.path}:{line}" if line else self._origin(keys[:-1])


def load(path: Path) -> Document:
    """The mapping in a YAML file. Raises UserError naming the line for anything else and for a key written twice."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            what = f"a file of more than {_LARGEST >> 20} MiB"
            raise UserError(what, where=str(path), fix="problems and results have files of their own")
        text = content.decode()
    except UnicodeDecodeError:
        raise UserError("not a text file in UTF-8", where=str(path), fix="save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path)) from None
    root, data = _parsed(path, text)
    return Document(path, copied(data), root)


def copied(value: Any) -> Any:
    """A copy of mappings and lists in one another; `copy.deepcopy` takes ten times as long to see that no value needs
    one."""
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, list) else value


@lru_cache(maxsize=512)
def _parsed(path: Path, text: str) -> tuple[Any, dict[str, Any]]:
    """Nodes and values of a file. Kept: what a command reads, its parts read again, and a study has hundreds."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is not None:
            _check_size(root, {})
        data = None if root is None else loader.construct_document(root)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a day that no calendar has
        mark, index = getattr(error, "problem_mark", None), getattr(error, "position", None)
        line = mark.line if mark else None if index is None else text.count("\n", 0, index)
        where = str(path) if line is None else f"{path}:{line + 1}"
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        if isinstance(error, _Twice):
            raise UserError(problem, where=where, fix="join them: YAML would keep the last one") from None
        written = "".join(text.splitlines()[mark.line : mark.line + 1]) if mark else ""
        if mark and written.strip() and written.isprintable() and len(written) <= _SHOWN:
            problem += f"\n  {written}\n  {' ' * mark.column}^"
        fix = "check indentation, colons and brackets; text that begins with * & ! % @ or ` goes in quotes"
        raise UserError(f"not valid YAML: {problem}", where=where, fix=fix) from None
    if not isinstance(data, dict):
        raise UserError("the file must hold a mapping of keys to values", where=str(path))
    return root, data
