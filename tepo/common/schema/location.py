"""Location of a value in a file or on a command line."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tepo.common.errors import UserError, unknown_name

Keys = tuple[str | int, ...]


@dataclass(frozen=True)
class Location:
    """The keys down to a value, and what names them in a message: `origin(keys)` is a file with its line, say."""

    origin: Callable[[Keys], str]
    keys: Keys = ()

    def at(self, *keys: str | int) -> "Location":
        """The location of what lies below."""
        return Location(self.origin, self.keys + keys)

    @property
    def key(self) -> str:
        """`rows[0].label`."""
        parts = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.keys)
        return parts.removeprefix(".")

    def __str__(self) -> str:
        origin = self.origin(self.keys)
        return origin if not self.keys or origin.startswith(self.key) else f"{origin} ({self.key})"

    def error(self, what: str, fix: str = "") -> UserError:
        """A mistake here."""
        return UserError(what, where=str(self), fix=fix)

    def unknown(self, kind: str, name: Any, known: Any) -> UserError:
        """A name here that does not exist, with the nearest one."""
        return unknown_name(kind, str(name), known, where=str(self))

    @contextmanager
    def named(self) -> Iterator[None]:
        """Put this location in front of what a UserError of somebody else says."""
        try:
            yield
        except UserError as error:
            where = f"{self}: {error.where}" if error.where else str(self)
            raise UserError(error.what, where=where, fix=error.fix) from None
