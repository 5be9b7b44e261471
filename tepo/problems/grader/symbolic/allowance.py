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
from functools import wraps
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

evalf: Any = import_module("sympy.core.evalf")  # sympy.core has a function of that name

Value = TypeVar("Value")


class OutOfWork(BaseException):
    """The allowance is spent. Not an Exception: sympy, math-verify and our own reader take those for "has no value"."""


class Count:
    """Ticks that are left, of which not all were spent for this answer alone: `kept` since sympy's memory is empty."""

    def __init__(self) -> None:
        self.reading = self.computing = sys.maxsize
        self.kept = 0

    def read(self, ticks: int) -> None:
        self.reading -= ticks
        if self.reading < 0:
            raise OutOfWork

    def compute(self, ticks: int) -> None:
        """Take the ticks of what is about to be computed. Raises OutOfWork where they are not left."""
        self.computing -= ticks
        self.kept += ticks
        if self.computing < 0:
            raise OutOfWork


count = Count()


def charged(
    work: Callable[..., Value], ticks: Callable[..., int], take: Callable[[int], None] = count.compute
) -> Callable[..., Value]:
    """A function that takes the ticks of its arguments before it works."""

    @wraps(work)
    def counted(*args: Any, **named: Any) -> Value:
        take(ticks(*args, **named))
        return work(*args, **named)

    return counted


def unpaid(work: Callable[..., Value], *args: Any) -> Value:
    """Reading that counts for no answer: that of a gold, and what the parser does once in its life."""
    before, count.reading = count.reading, sys.maxsize
    try:
        return work(*args)
    finally:
        count.reading = before


_steps: dict[tuple[int, int], int] = {}
_charged: set[tuple[int, int]] = set()
"""What each step cost that the parser remembers (from a state, with a token), and the steps of this text."""
_known, _find = ParserATNSimulator.getExistingTargetState, ParserATNSimulator.computeTargetState
_start, _sift = ParserATNSimulator.computeStartState, ParserATNSimulator.applyPrecedenceFilter


def _remembered(self: Any, state: Any, token: int) -> Any:
    target = _known(self, state, token)
    if target is not None and (step := (id(state), token)) not in _charged:
        _charged.add(step)
        count.read(_steps.get(step, 0))
    return target


def _found(self: Any, dfa: Any, state: Any, token: int) -> Any:
    before = count.reading
    target = _find(self, dfa, state, token)
    step = (id(state), token)
    _steps[step] = before - count.reading
    _charged.add(step)
    return _known(self, state, token) or target  # the one that is kept of equal states


def _started(self: Any, state: Any, context: Any, full: bool) -> Any:
    return _start(self, state, context, full) if full else unpaid(_start, self, state, context, full)


ATNConfigSet.add = charged(ATNConfigSet.add, lambda *_: _CONFIGURATION, count.read)
Parser.consume = charged(Parser.consume, lambda *_: _TOKEN, count.read)
ParserATNSimulator.getExistingTargetState, ParserATNSimulator.computeTargetState = _remembered, _found
ParserATNSimulator.computeStartState = _started
ParserATNSimulator.applyPrecedenceFilter = lambda self, configs: unpaid(_sift, self, configs)


def _one_by_one(factors: int) -> int:
    """Ticks of a product whose factors are multiplied one after another."""
    return factors // 16 + factors * factors // 60_000


def _of_binomial(cls: type, n: Any, k: Any) -> int:
    whole = isinstance(n, Integer) and isinstance(k, Integer)
    return _one_by_one(min(abs(k.p), abs(n.p - k.p)) if whole else abs(k.p) * n.is_number) if k.is_Integer else 0


def _of_powers(cls: type, x: Any, k: Any) -> int:
    return 2 * abs(k.p) + k.p * k.p // 1000 if k.is_Integer else 0


def _of_long(x: Any, bits: int) -> int:
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


_COSTS: tuple[tuple[Any, str, Callable[..., int]], ...] = (
    (factorial, "eval", lambda cls, n: abs(n.p) // _FACTORS + n.p * n.p // 4_000_000 if n.is_Integer else 0),
    (factorial2, "eval", lambda cls, n: _one_by_one(abs(n.p)) if n.is_Integer else 0),
    (binomial, "eval", _of_binomial),
    (RisingFactorial, "eval", _of_powers),
    (FallingFactorial, "eval", _of_powers),
    (gamma, "eval", lambda cls, n: _one_by_one(abs(n.p) // 2) if n.is_Rational and n.q == 2 else 0),
    (primetest, "is_strong_bpsw_prp", lambda n: (int(n).bit_length() // 100) ** 3 // 12),
    (gammazeta, "real_stirling_series", _of_long),
    (libelefun, "log_agm", _of_long),
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
Basic.__new__ = charged(Basic.__new__, lambda cls, *args: _EXPRESSION + len(args) // _ARGUMENTS)  # type: ignore[method-assign]
for _owner, _name, _ticks in _COSTS:
    _work = getattr(_owner, _name)
    _function = getattr(_work, "__func__", None)  # of a class method
    setattr(_owner, _name, classmethod(charged(_function, _ticks)) if _function else charged(_work, _ticks))
for _kind in ("prime", "composite"):
    _asked: dict[str, Callable[[Any], bool | None]] = Integer._prop_handler  # type: ignore[attr-defined]
    _asked[_kind] = lambda number, ask=_asked[_kind]: ask(number) if number.p.bit_length() <= _PRIME_BITS else None  # type: ignore[misc]


def remembered(read: Callable[[str], Value]) -> Callable[[str], Value]:
    """A function of texts that remembers its results; every call is charged what reading this text alone costs."""
    results: dict[str, tuple[Value, int, int]] = {}

    @wraps(read)
    def once(text: str) -> Value:
        if text in results:
            value, reading, computing = results[text]
            count.read(reading)
            count.compute(computing)
            return value
        if len(results) >= _TEXTS:
            results.clear()
        _charged.clear()
        before = count.reading, count.computing
        value = read(text)
        results[text] = value, before[0] - count.reading, before[1] - count.computing
        return value

    return once


@contextmanager
def allowance(*, first: bool) -> Iterator[None]:
    """At most the ticks of a first or second try inside, each draw of sympy's random points the same. Raises OutOfWork
    where they are spent, and at the end if something on the way swallowed that."""
    if count.kept > REMEMBERED:
        clear_cache()
        count.kept = 0
    seed(0)
    count.reading, count.computing = READING, FIRST if first else FIRST + REMEMBERED
    yield
    if min(count.reading, count.computing) < 0:
        raise OutOfWork
