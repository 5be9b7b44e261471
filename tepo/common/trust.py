"""Permission to execute code outside the package and to send to other machines: the caller of this command gives it,
and nobody else.

A stored run, a study and a record may name code (`trust_remote_code`) and places (`sampler.servers`), and permits none.
The caller does with `--trust`, by writing the override himself, or by the Python being in his TEPO_PATH.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tepo.common.errors import UserError

_said: tuple[bool, frozenset[str]] = False, frozenset()  # whether the caller trusts all, and the overrides he wrote
_noted: set[str] = set()


@contextmanager
def caller() -> Iterator[None]:
    """A block at whose end is forgotten what the caller said in it: a command, a call from Python."""
    global _said
    before = _said
    try:
        yield
    finally:
        _said = before


def say(words: Iterable[str] = (), *, trusts: bool = False) -> None:
    """The caller wrote these overrides, or trusts what is named (`--trust`)."""
    global _said
    _said = _said[0] or trusts, _said[1] | frozenset(map(str.strip, words))


def given() -> bool:
    """Tell whether the caller trusts all that is named."""
    return _said[0]


def wrote(word: str) -> bool:
    """Tell whether the caller himself wrote an override."""
    return word.strip() in _said[1]


def ask(what: str, where: str, fix: str, sends: bool = False) -> None:
    """Have the caller's permission to execute code, or to send, and log that it was given. what: says that something
    names code or a machine, where: its place. Raises UserError without it: a Slurm job has nobody to ask."""
    if not given():
        raise UserError(what, where=where, fix=f"{fix}; --trust {'permits' if sends else 'executes'} it")
    note(f"{'permitted' if sends else 'executed'}, as --trust says: {what}, in {where}")


def note(text: str) -> None:
    """Log once in a process what is executed or sent."""
    if text not in _noted:
        _noted.add(text)
        logging.getLogger(__name__).warning(text)
