"""Work that can be counted: the expressions sympy builds for an answer. Imported by workers only.

A clock measures the machine as much as the answer: even CPU time doubles beside busy neighbours. This count does not,
so an answer that is hard for sympy (an integral, a sum without closed form, equations that it cannot solve) is given up
at the same place on every machine. It is the same on every try in a worker that judged nothing before: sympy remembers
what it built. Importing this module starts the count, in `Basic.__new__`, for the life of the process."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sympy.core.basic import Basic
from sympy.core.random import seed

_build = Basic.__new__
_left = sys.maxsize


class OutOfWork(BaseException):
    """The allowance is spent. Not an Exception: sympy, math-verify and our own reader take those for "has no value"."""


def _counted(cls: type[Basic], *args: object) -> Basic:
    global _left
    _left -= 1
    if _left < 0:
        raise OutOfWork
    return _build(cls, *args)


Basic.__new__ = _counted  # type: ignore[assignment, method-assign]


@contextmanager
def allowance(expressions: int) -> Iterator[None]:
    """At most so many expressions may be built inside, each draw of sympy's random points the same. Raises OutOfWork at
    the next one, and at the end if something on the way swallowed that."""
    global _left
    seed(0)
    _left = expressions
    try:
        yield
        if _left < 0:
            raise OutOfWork
    finally:
        _left = sys.maxsize
