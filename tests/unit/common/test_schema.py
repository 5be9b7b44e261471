import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from tepo.common.errors import UserError
from tepo.common.schema import REQUIRED, Exclusive, Location, derived, option, read
from tepo.common.schema.document import load


@dataclass(frozen=True)
class Inner:
    size: int = option(1, "a size", low=1, high=3)


@dataclass(frozen=True)
class Outer:
    """One field of each type."""

    word: str = option(REQUIRED, "a word")
    kind: Literal["one", "two"] = option("one", "a kind")
    number: float | None = option(None, "a number", low=Exclusive(0), high=math.inf)
    share: float = option(0.5, "a share", low=0, high=Exclusive(1))
    on: bool = option(False, "a switch")
    several: tuple[int, ...] = option((), "numbers", low=0)
    names: list[str] = option([], "names")
    table: dict[str, float] = option({}, "a table")
    inner: Inner = option(Inner(), "what is inside")
    either: str | dict[str, Any] | None = option(None, "text or a mapping")
    later: str = derived("", "somebody else fills it in")


AT = Location(lambda _: "here")


@pytest.mark.parametrize(
    ("key", "given", "read_as"),
    [
        ("word", 3, "3"),
        ("number", "1e-3", 0.001),
        ("number", 2, 2.0),
        ("number", float("inf"), float("inf")),
        ("on", "off", False),
        ("on", True, True),
        ("several", [1, "2", 1e3, "1e3", 10**400], (1, 2, 1000, 1000, 10**400)),
        ("several", None, ()),
        ("names", ["a"], ["a"]),
        ("table", {"a": 1}, {"a": 1.0}),
        ("inner", {"size": 3}, Inner(3)),
        ("either", "a", "a"),
        ("either", {"a": None}, {"a": None}),
        ("either", None, None),
    ],
)
def test_a_value_gets_the_type_of_its_field(key: str, given: Any, read_as: Any) -> None:
    found = getattr(read(Outer, {"word": "a", key: given}, AT), key)
    assert (found, type(found)) == (read_as, type(read_as))


@pytest.mark.parametrize(
    ("key", "given", "what"),
    [
        ("word", None, "word must be text, not nothing"),
        ("word", True, "word must be text, not True"),
        ("kind", "three", "unknown kind 'three'"),
        ("number", 0, "number must be positive, not 0"),
        ("number", float("nan"), "number must be a number, not nan"),
        ("share", 1, "share must be below 1, not 1"),
        ("share", -1, "share must be at least 0, not -1"),
        ("on", 1, "on must be true or false, not 1"),
        ("several", [1.5], "several[0] must be a whole number, not 1.5"),
        ("several", ["1e-3"], "several[0] must be a whole number, not '1e-3'"),
        ("several", "12", "several is a list, not '12'"),
        ("table", {"a": "x"}, "table.a must be a number, not 'x'"),
        ("table", {"a": 10**400}, "table.a must be a number, not 1000"),
        ("inner", {"size": 4}, "inner.size must be between 1 and 3, not 4"),
        ("inner", {"sise": 4}, "unknown key 'inner.sise'"),
        ("either", [1], "either must be text or a mapping, not [1]"),
        ("later", "x", "the key 'later' is not allowed here"),
    ],
)
def test_another_value_is_refused(key: str, given: Any, what: str) -> None:
    with pytest.raises(UserError) as caught:
        read(Outer, {"word": "a", key: given}, AT)
    assert caught.value.what.startswith(what)
    assert caught.value.where.startswith(f"here ({key}")


def test_a_key_that_a_merge_brings_is_not_there_twice(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, y: 4}\n")
    assert load(tmp_path / "a.yaml").data["c"] == {"x": 3, "y": 4}
