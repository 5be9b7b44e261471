"""Words of messages."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_CHECKOUT = Path(__file__).parents[2]
_CONTROLS = re.compile(  # all that moves a cursor, colours, deletes or turns text around, and half of a character
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_NAMED, _SHOWN = 3, 200  # texts of a list in a message, and characters of each


def spelt(text: str) -> str:
    """Text of a file, a model or a stranger as a terminal may show it: control characters but newlines and tabs, and
    those that change the direction of text, written out as \\x1b or \\u202e."""
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def counted(number: int, noun: str) -> str:
    """`1 run`, `5,120 runs`: a number with its noun, whose plural ends in s."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def install_line(extra: str = "", root: Path = _CHECKOUT) -> str:
    """The command that installs a missing extra, and tepo itself without one. root: the folder that tepo is imported
    from. In a checkout pip must take it from there, in an installed wheel by name: pip finds tepo installed and adds
    what the extra needs."""
    extras = f"[{extra}]" if extra else ""
    if not (root / "pyproject.toml").is_file():
        return f"pip install {shlex.quote('tepo' + extras)}"
    source = "." if root == Path.cwd() else str(root)
    return f"pip install -e {shlex.quote(source + extras)}"


def setting_text(point: Mapping[str, str]) -> str:
    """A setting of a sweep: `learning_rate=1e-4, clip=tight`; nothing where nothing varies. A name without a value
    stands alone: `default`."""
    return ", ".join("=".join(filter(None, item)) for item in point.items())


def with_setting(label: str, point: Mapping[str, str]) -> str:
    """A label and its setting: what tells the rows of a sweep apart."""
    return ", ".join(filter(None, (label, setting_text(point))))


def listed(parts: Iterable[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def some_of(texts: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    first = [text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…" for text in texts[:_NAMED]]
    more = [f"and {len(texts) - _NAMED:,} more"] if len(texts) > _NAMED else []
    return "; ".join([*first, *more])
