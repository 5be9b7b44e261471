"""Work that can be counted: what the parser reads and what sympy computes for an answer. Imported by workers only.

A clock measures the machine as much as the answer: even CPU time doubles beside busy neighbours. These counts do not,
so an answer that is hard to read or to compute (bars that nest, an integral, a tower of powers, equations that sympy
cannot solve) is given up at the same place on every machine. Importing this module starts them for the life of the
process, in the calls that all work passes through. A tick of either is about 15 microseconds of one core.

Nor do they depend on the answers before. Reading: what the parser remembers of other texts is charged as if it had to
be found out again. Computing: what sympy remembers is forgotten before it could have saved more than `REMEMBERED`."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from importlib import import_module
from typing import Any, TypeVar

from antlr4.atn.ATNConfigSet import ATNConfigSet
from antlr4.atn.ParserATNSimulator import ParserATNSimulator
from antlr4.Parser import Parser
from mpmath.libmp import gammazeta, libelefun
from sympy import FallingFactorial, Integer, Rational, RisingFactorial, binomial, factorial, factorial2, gamma
from sympy.core.basic import Basic
from sympy.core.cache import clear_cache
from sympy.core.random import seed
from sympy.ntheory import primetest
from sympy.polys import factortools, partfrac, rootoftools

READING, FIRST, REMEMBERED = 55_000, 15_000, 10_000
"""Ticks that an answer may take to be read, that it may take to be computed where others went before, and that sympy's
memory may hold. An answer that needs more than FIRST is computed again where nothing went before, with both together:
what the first try let through would not have taken more there."""

_CONFIGURATION, _TOKEN, _EXPRESSION = 1, 30, 3
"""Ticks of a state that the parser considers, of a token that it takes, and of an expression that sympy builds."""
_POWER_BITS, _BITS, _FACTORS, _TERMS, _ARGUMENTS, _LONG = 256, 128, 64, 4, 8, 250
"""What one tick computes: bits of an exact power; of an exponent, a value or a constant; factors of a factorial; terms
of the series for pi and e; further arguments of an expression. Of long series the terms themselves are long."""
_PRIME_BITS = 1000
"""Of longer integers sympy does not ask whether they are prime (it would, of the argument of any logarithm)."""
_TEXTS = 4096

_ASKED: dict[str, Callable[[Any], bool | None]] = Integer._prop_handler  # type: ignore[attr-defined]

evalf: Any = import_module("sympy.core.evalf")  # sympy.core has a function of that name

Value = TypeVar("Value")


class OutOfWork(BaseException):
    """The allowance is spent. Not an Exception: sympy, math-verify and our own reader take those for "has no value"."""


class _Count:
    """Ticks that are left, of which not all were spent for this answer alone: `kept` since sympy's memory is empty."""

    def __init__(self) -> None:
        self.reading = self.computing = sys.maxsize
        self.kept = 0

    def read(self, ticks: int) -> None:
        self.reading -= ticks
        if self.reading < 0:
            raise OutOfWork

    def compute(self, ticks: int) -> None:
        self.computing -= ticks
        self.kept += ticks
        if self.computing < 0:
            raise OutOfWork


_count = _Count()
_steps: dict[tuple[int, int], int] = {}
_charged: set[tuple[int, int]] = set()
"""What each step cost that the parser remembers (from a state, with a token), and the steps of this text."""


def _count_reading() -> None:
    add, consume = ATNConfigSet.add, Parser.consume
    known, find = ParserATNSimulator.getExistingTargetState, ParserATNSimulator.computeTargetState
    start, sift = ParserATNSimulator.computeStartState, ParserATNSimulator.applyPrecedenceFilter

    def added(self: Any, *args: Any) -> Any:
        _count.read(_CONFIGURATION)
        return add(self, *args)

    def consumed(self: Any) -> Any:
        _count.read(_TOKEN)
        return consume(self)

    def remembered(self: Any, state: Any, token: int) -> Any:
        target = known(self, state, token)
        if target is not None and (step := (id(state), token)) not in _charged:
            _charged.add(step)
            _count.read(_steps.get(step, 0))
        return target

    def found(self: Any, dfa: Any, state: Any, token: int) -> Any:
        before = _count.reading
        target = find(self, dfa, state, token)
        step = (id(state), token)
        _steps[step] = before - _count.reading
        _charged.add(step)
        return known(self, state, token) or target  # the one that is kept of equal states

    def started(self: Any, state: Any, context: Any, full: bool) -> Any:
        return start(self, state, context, full) if full else unpaid(start, self, state, context, full)

    def sifted(self: Any, configs: Any) -> Any:
        return unpaid(sift, self, configs)

    ATNConfigSet.add, Parser.consume = added, consumed
    ParserATNSimulator.getExistingTargetState, ParserATNSimulator.computeTargetState = remembered, found
    ParserATNSimulator.computeStartState, ParserATNSimulator.applyPrecedenceFilter = started, sifted


def unpaid(work: Callable[..., Value], *args: Any) -> Value:
    """Reading that counts for no answer: that of a gold, and what the parser does once in its life."""
    before, _count.reading = _count.reading, sys.maxsize
    try:
        return work(*args)
    finally:
        _count.reading = before


def _count_computing() -> None:
    build = Basic.__new__

    def built(cls: type[Basic], *args: object) -> Basic:
        _count.compute(_EXPRESSION + len(args) // _ARGUMENTS)
        return build(cls, *args)

    Basic.__new__ = built  # type: ignore[assignment, method-assign]
    for kind in ("prime", "composite"):
        _ASKED[kind] = partial(_of_short, _ASKED[kind])
    for product, ticks in _PRODUCTS.items():
        product.eval = classmethod(charged(product.eval.__func__, ticks))
    for owner, name, ticks in _LENGTHS:
        setattr(owner, name, charged(getattr(owner, name), ticks))


def _of_short(ask: Callable[[Any], bool | None], number: Any) -> bool | None:
    return None if number.p.bit_length() > _PRIME_BITS else ask(number)


def charged(work: Callable[..., Value], ticks: Callable[..., int]) -> Callable[..., Value]:
    """A function that takes the ticks of its arguments before it works."""

    @wraps(work)
    def counted(*args: Any, **named: Any) -> Value:
        _count.compute(ticks(*args, **named))
        return work(*args, **named)

    return counted


def _one_by_one(count: int) -> int:
    """Ticks of a product whose factors are multiplied one after another."""
    return count // 16 + count * count // 60_000


def _of_binomial(cls: type, n: Any, k: Any) -> int:
    whole = isinstance(n, Integer) and isinstance(k, Integer)
    return _one_by_one(min(abs(k.p), abs(n.p - k.p)) if whole else abs(k.p) * n.is_number) if k.is_Integer else 0


def _of_powers(cls: type, x: Any, k: Any) -> int:
    return 2 * abs(k.p) + k.p * k.p // 1000 if k.is_Integer else 0


def _of_long(bits: int) -> int:
    """Ticks of a function of numbers of this length."""
    return bits // _BITS * (1 + bits // 16_000)


def _of_power(base: Rational, exponent: Basic) -> int:
    if not isinstance(exponent, Rational):
        return 0
    size = max(abs(base.p).bit_length(), base.q.bit_length()) - 1
    return size * abs(exponent.p) // (exponent.q * _POWER_BITS)


def _of_pi(a: int, b: int, level: int, verbose: Any) -> int:
    terms = (b - a) // _TERMS if level == 0 else 0
    return terms + terms * terms // _LONG


_PRODUCTS: dict[Any, Callable[..., int]] = {
    factorial: lambda cls, n: abs(n.p) // _FACTORS + n.p * n.p // 4_000_000 if n.is_Integer else 0,
    factorial2: lambda cls, n: _one_by_one(abs(n.p)) if n.is_Integer else 0,
    binomial: _of_binomial,
    RisingFactorial: _of_powers,
    FallingFactorial: _of_powers,
    gamma: lambda cls, n: _one_by_one(abs(n.p) // 2) if n.is_Rational and n.q == 2 else 0,
}
_LENGTHS: tuple[tuple[Any, str, Callable[..., int]], ...] = (
    (primetest, "is_strong_bpsw_prp", lambda n: (int(n).bit_length() // 100) ** 3 // 12),
    (gammazeta, "real_stirling_series", lambda x, prec: _of_long(prec)),
    (libelefun, "log_agm", lambda x, prec: _of_long(prec)),
    (libelefun, "bspe", lambda a, b: (b - a) // _TERMS if a == 0 else 0),
    (factortools, "dup_zz_zassenhaus", lambda f, domain: len(f) ** 3 // 5),
    (rootoftools, "dup_isolate_complex_roots_sqf", lambda f, *_, **__: 15 * len(f) ** 3),
    (partfrac, "apart_undetermined_coeffs", lambda above, below: below.degree() ** 2),
    (libelefun, "bs_chudnovsky", _of_pi),
    (libelefun, "machin", lambda coefs, prec, hyperbolic=False: prec // _BITS),
    (libelefun, "mpf_pow_int", lambda s, n, *_, **__: n.bit_length() // _BITS),
    (evalf, "evalf", lambda x, prec, options: prec // _BITS),
    (Integer, "_eval_power", _of_power),
    (Rational, "_eval_power", _of_power),
)
"""What is computed as a product of many factors, with long numbers or with polynomials of high degree; the ticks of
their arguments."""
_count_reading()
_count_computing()


def remembered(read: Callable[[str], Value]) -> Callable[[str], Value]:
    """A function of texts that remembers its results; every call is charged what reading this text alone costs."""
    results: dict[str, tuple[Value, int, int]] = {}

    @wraps(read)
    def once(text: str) -> Value:
        if text in results:
            value, reading, computing = results[text]
            _count.read(reading)
            _count.compute(computing)
            return value
        if len(results) >= _TEXTS:
            results.clear()
        _charged.clear()
        before = _count.reading, _count.computing
        value = read(text)
        results[text] = value, before[0] - _count.reading, before[1] - _count.computing
        return value

    return once


@contextmanager
def allowance(*, first: bool) -> Iterator[None]:
    """At most the ticks of a first or second try inside, each draw of sympy's random points the same. Raises OutOfWork
    where they are spent, and at the end if something on the way swallowed that."""
    if _count.kept > REMEMBERED:
        clear_cache()
        _count.kept = 0
    seed(0)
    _count.reading, _count.computing = READING, FIRST if first else FIRST + REMEMBERED
    yield
    if min(_count.reading, _count.computing) < 0:
        raise OutOfWork


def charge(ticks: int) -> None:
    """Take the ticks of what is about to be computed. Raises OutOfWork where they are not left."""
    _count.compute(ticks)


def too_long_to_read() -> bool:
    """Did the latest answer exceed what may be read? A second try would end at the same place."""
    return _count.reading < 0
