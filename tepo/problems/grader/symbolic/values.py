"""Equality of expressions by their values: constants at high precision,
expressions with symbols at fixed sample points.

Two expressions that agree to 32 digits at six points without relations between the unknowns are equal in practice, and
one point where they differ proves that they are not; both are cheaper than simplification, which math-verify uses."""

from collections.abc import Sequence
from fractions import Fraction

import sympy
from sympy.core.function import AppliedUndef

from tepo.problems.grader.kinds.numbers.simple_expression import sample
from tepo.problems.grader.symbolic.allowance import OutOfWork

DIGITS = 40
_AGREE = sympy.Float(10) ** -32
_ENOUGH = 3
_MOST_DIGITS = 20_000
_POINTS, _POSITIVE_POINTS = 6, 4
_INTEGER_POINTS = (
    (5, 3, 2, 7), (6, 2, 3, 4), (7, 4, 2, 3), (8, 3, 5, 2), (9, 5, 3, 4), (10, 4, 3, 6),
    (11, 6, 5, 2), (12, 7, 4, 5), (2, 9, 11, 13), (3, 10, 12, 8), (4, 11, 6, 9),
)  # fmt: skip
_ROUNDING = (sympy.floor, sympy.ceiling)
_REALS = frozenset("xyztrs")
"""Names of real numbers: their floors are not compared at integers alone, where floor and ceiling agree."""
_INTEGER_FUNCTIONS = (
    sympy.factorial, sympy.binomial, sympy.Mod, sympy.Sum, sympy.Product, sympy.gamma, sympy.factorial2,
)  # fmt: skip


def is_scalar(value: object) -> bool:
    """A number or a function of numbers: no matrix, set, tuple (but for limits of sums) or relation."""
    if not isinstance(value, sympy.Expr) or isinstance(value, sympy.MatrixExpr):
        return False
    of_sets, limits = value.has(sympy.MatrixBase, sympy.Set), (sympy.Sum, sympy.Product, sympy.Integral)
    return not of_sets and (not value.has(sympy.Tuple) or value.has(*limits))


def same_value(gold: sympy.Expr, answer: sympy.Expr) -> bool | None:
    """True or False where the values tell, None where they cannot be computed."""
    gold, answer = _named(gold), _named(answer)
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=lambda symbol: symbol.name)
    if not symbols:
        return _same_constant(gold, answer)
    agreed, imaginary = 0, gold.has(sympy.I) or answer.has(sympy.I)
    for point, positive in _points(gold, answer, symbols):
        left, right = value_at(gold, point), value_at(answer, point)
        if left is None or right is None:
            continue
        if not positive:
            real, other = _is_real(left), _is_real(right)
            if real != other or not (real or imaginary):
                continue  # outside the domain: a root or logarithm of a negative number, where i is not written
        if not _close(left, right):
            decisive = positive or len(symbols) < 2 or gold.has(sympy.Abs) or answer.has(sympy.Abs)
            return not decisive and agreed >= _ENOUGH
        agreed += 1
    return True if agreed >= _ENOUGH else None


def ratio(left: sympy.Expr, right: sympy.Expr) -> sympy.Expr | None:
    """The constant left / right is at every sample point, None if it is not constant
    (or cannot be computed, or is zero)."""
    left, right = _named(left), _named(right)
    symbols = sorted(left.free_symbols | right.free_symbols, key=lambda symbol: symbol.name)
    quotients: list[sympy.Expr] = []
    for point, _ in _points(left, right, symbols):
        above, below = value_at(left, point), value_at(right, point)
        if above is None or below is None or _vanishes(below) or _vanishes(above):
            continue
        quotient = above / below
        if quotients and not _close(quotients[0], quotient):
            return None
        quotients.append(quotient)
    return quotients[0] if len(quotients) >= (_ENOUGH if symbols else 1) else None


def constant(expression: sympy.Expr, digits: int = DIGITS) -> sympy.Expr | None:
    """The numeric value of an expression without symbols, None if it has none."""
    return value_at(expression, {}, digits)


def as_fraction(value: sympy.Expr) -> Fraction | None:
    """An evaluated real number as an exact fraction of its printed value."""
    real, imaginary = value.as_real_imag()
    if not _vanishes(imaginary) or not real.is_finite:
        return None
    rational = sympy.Rational(real) if real.is_Float else real
    return Fraction(int(rational.p), int(rational.q)) if rational.is_Rational else None


def value_at(expression: sympy.Expr, point: dict[sympy.Symbol, sympy.Expr], digits: int = DIGITS) -> sympy.Expr | None:
    """A finite complex number, or None."""
    try:
        if expression.has(sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.factorial2):
            expression = expression.subs(point).doit()
        value = expression.evalf(digits, maxn=digits + 100, **({"subs": point} if point else {}))
    except (MemoryError, RecursionError):
        raise
    except Exception:  # evalf raises many things on expressions without a value there
        return None
    if not value.is_number or value.has(sympy.nan, sympy.zoo, sympy.oo):
        return None
    real, imaginary = value.as_real_imag()
    return value if all(part.is_Float or part.is_Rational for part in (real, imaginary)) else None


def _named(expression: sympy.Expr) -> sympy.Expr:
    """Applications of unknown functions, f(x) or I(0), as symbols of their own."""
    calls = {call: sympy.Symbol(str(call)) for call in expression.atoms(AppliedUndef)}
    return expression.xreplace(calls) if calls else expression


def _points(
    left: sympy.Expr, right: sympy.Expr, symbols: Sequence[sympy.Symbol]
) -> list[tuple[dict[sympy.Symbol, sympy.Expr], bool]]:
    """Sample points with whether all values are positive:
    integers where floors, factorials or signs (-1)^n are about."""
    integers = left.has(*_INTEGER_FUNCTIONS) or right.has(*_INTEGER_FUNCTIONS)
    integers = integers or _alternates(left) or _alternates(right)
    rounded = left.has(*_ROUNDING) or right.has(*_ROUNDING)
    integers = integers or (rounded and not all(symbol.name in _REALS for symbol in symbols))
    if integers:
        return [
            ({symbol: sympy.Integer(_whole(row, index)) for index, symbol in enumerate(symbols)}, True)
            for row in range(len(_INTEGER_POINTS))
        ]
    points = []
    for shift in range(_POINTS):
        positive = shift < _POSITIVE_POINTS
        point = {}
        for index, symbol in enumerate(symbols):
            value = sympy.Float(sample(shift, index), DIGITS)
            negative = not positive and (len(symbols) == 1 or (index + shift) % 2 == len(symbols) % 2)
            point[symbol] = -value if negative else value
        points.append((point, positive))
    return points


def _whole(row: int, index: int) -> int:
    """The value of one unknown at an integer point; beyond the columns written down, one of 2 to 13."""
    columns = _INTEGER_POINTS[row]
    return columns[index] if index < len(columns) else 2 + int(sample(row, index).replace(".", "")) % 12


def _alternates(expression: sympy.Expr) -> bool:
    return any(
        power.base.is_number and power.base.is_negative and power.exp.free_symbols
        for power in expression.atoms(sympy.Pow)
    )


def _same_constant(gold: sympy.Expr, answer: sympy.Expr) -> bool | None:
    if gold.has(sympy.oo, -sympy.oo) or answer.has(sympy.oo, -sympy.oo):
        return bool(gold.doit() == answer.doit())
    left, right = constant(gold), constant(answer)
    if left is None or right is None:
        return None
    if not _close(left, right):
        return False
    first, second = _rational(gold), _rational(answer)
    if first is not None and second is not None:
        return bool(first == second)
    hidden = _hidden_digits(gold) + _hidden_digits(answer)
    if hidden == 0:
        return True
    digits = 100 + hidden
    if digits > _MOST_DIGITS:
        raise OutOfWork
    left, right = constant(gold, digits), constant(answer, digits)
    return None if left is None or right is None else _close(left, right, sympy.Float(10, digits) ** (20 - digits))


def _rational(expression: sympy.Expr) -> sympy.Rational | None:
    """The exact value of an expression in rational numbers alone, None where it is irrational."""
    if not all(atom.is_Rational for atom in expression.atoms(sympy.Atom)):
        return None
    value = expression.doit()
    return value if value.is_Rational else None


def _hidden_digits(expression: sympy.Expr) -> int:
    r"""Number of digits below the leading ones in which a difference may hide: the spread of the terms of sums
    (1-2^{-2016}, 2^{2009}-1) and the length of written integers; 0 when the first comparison saw everything."""
    hidden = max((int(abs(number.p)).bit_length() * 3 // 10 for number in expression.atoms(sympy.Integer)), default=0)
    hidden = hidden if hidden > DIGITS // 2 else 0
    for total in expression.atoms(sympy.Add):
        sizes = [size for term in total.args if (size := _decimal_size(term)) is not None]
        spread = max(sizes) - min(sizes) if sizes else 0
        hidden += spread + DIGITS if spread > DIGITS // 4 else 0
    return hidden


def _decimal_size(term: sympy.Expr) -> int | None:
    """log10 of the magnitude of a constant, roughly; None for 0 and what has no value."""
    value = value_at(term, {}, 5)
    if value is None or _vanishes(value):
        return None
    _, _, exponent, bits = sympy.Float(abs(value), 5)._mpf_
    return int((exponent + bits) * 0.30103)


def _is_real(value: sympy.Expr) -> bool:
    return _vanishes(value.as_real_imag()[1])


def _vanishes(value: sympy.Expr) -> bool:
    """Zero, or noise of a cancellation (evalf then gives a number of precision 1)."""
    return all(part == 0 or (part.is_Float and part._prec == 1) for part in value.as_real_imag())


def _close(left: sympy.Expr, right: sympy.Expr, tolerance: sympy.Float = _AGREE) -> bool:
    if _vanishes(left) or _vanishes(right):
        return _vanishes(left) and _vanishes(right)
    return bool(abs(left - right) <= tolerance * max(abs(left), abs(right)))
