"""A place in a YAML file, for messages with file, line and key."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tepo.config.compose import options
from tepo.config.own import is_own
from tepo.errors import UserError, unknown_name

_EXAMPLE = "see ablations/panel_e.yaml"


@dataclass(frozen=True)
class Place:
    """A node of a file's YAML tree. The checks raise UserError naming file, line and key."""

    path: Path
    node: Any

    def at(self, *keys: str | int) -> "Place":
        """What lies below, as far as it is there."""
        node = self.node
        for key in keys:
            child = _child(node, key)
            if child is None:
                break
            node = child
        return Place(self.path, node)

    def text(self, *keys: str | int) -> str:
        """`file:line (key.key)`."""
        place = self.at(*keys)
        return f"{self.path}:{place.node.start_mark.line + 1}" + (f" ({'.'.join(map(str, keys))})" if keys else "")

    def keys(self, data: Any, known: tuple[str, ...], *required: str) -> None:
        """The data here must be a mapping with known keys, each there once, and the required ones."""
        if not isinstance(data, dict):
            raise UserError(f"expected a mapping with the keys {', '.join(known)}", where=self.text(), fix=_EXAMPLE)
        for key in data:
            if key not in known:
                raise unknown_name("key", str(key), known, where=self.text(str(key)))
        for key in required:
            if key not in data:
                raise UserError(f"the key {key!r} is missing", where=self.text(), fix=_EXAMPLE)
        written = [name.value for name, _ in self.node.value]
        for key in written:
            if written.count(key) > 1:
                raise UserError(
                    f"the key {key!r} is there twice",
                    where=self.text(key),
                    fix="YAML would keep the last one: join them",
                )

    def kind(self, data: dict[str, Any], key: str, kind: type) -> None:
        """The value of a key, where it is there, must be a list or a mapping."""
        if data.get(key) is not None and not isinstance(data[key], kind):
            raise UserError(
                f"{key} is {'a list' if kind is list else 'a mapping'}, not {data[key]!r}",
                where=self.text(key),
                fix=_EXAMPLE,
            )

    def name(self, kind: str, value: Any, *keys: str | int) -> str:
        """The value of a key that names an option of a configuration group, or a model of the user's own."""
        if value not in options(kind) and not (isinstance(value, str) and is_own(kind, value)):
            raise unknown_name(kind, str(value), options(kind), where=self.text(*keys))
        return str(value)


def _child(node: Any, key: str | int) -> Any:
    if isinstance(node, yaml.MappingNode):
        return next((value for name, value in node.value if name.value == str(key)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        return node.value[key]
    return None
