"""Equality of two expressions through sympy: by their values, constants at high precision and expressions with symbols
at fixed sample points, then by math-verify. Imported by workers only.

Two expressions that agree to 32 digits at six points without relations between the unknowns, and at one of them to as
many as their terms can hide, are equal in practice. One point where they differ proves that they are not. Both are
cheaper than simplification, which math-verify uses."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType

import mpmath
import sympy
from latex2sympy2_extended.logic import And
from math_verify import verify
from sympy.core.function import AppliedUndef
from sympy.functions.elementary.hyperbolic import HyperbolicFunction

from tepo.problems.grader.comparer import Comparer, unread
from tepo.problems.grader.numbers import ANSWER_DIGITS, GOLD_DIGITS, Arithmetic, parse_number, same, sample
from tepo.problems.grader.spelling import canonical
from tepo.problems.grader.symbolic.allowance import OutOfWork, unpaid
from tepo.problems.grader.symbolic.parser import Gcd, Lcm, to_sympy

Point = dict[sympy.Symbol, sympy.Expr]
DIGITS = 40
_AGREE = sympy.Float(10) ** -32
_ENOUGH = 3
_MOST_DIGITS, _MOST_HIDDEN = 20_000, 1000
_POINTS, _POSITIVE_POINTS = 6, 4
_INTEGER_POINTS = (
    (5, 3, 2, 7), (6, 2, 3, 4), (7, 4, 2, 3), (8, 3, 5, 2), (9, 5, 3, 4), (10, 4, 3, 6),
    (11, 6, 5, 2), (12, 7, 4, 5), (2, 9, 11, 13), (3, 10, 12, 8), (4, 11, 6, 9), (12, 8, 10, 6), (6, 6, 4, 9),
)  # fmt: skip
_ROUNDING = (sympy.floor, sympy.ceiling)
_REALS, _REALS_BESIDE = frozenset("xyztrs"), frozenset("xyz")
"""Names of real numbers, and those that stay so beside others: their floors are not compared at integers alone, where
floor and ceiling agree."""
_STEEP = (sympy.factorial, sympy.binomial, sympy.Sum, sympy.Product, sympy.gamma, sympy.factorial2)
_BENT = (*_ROUNDING, sympy.Mod, Gcd, sympy.Abs, sympy.Max, sympy.Min)
_TWELFTHS = sympy.Rational(7, 12)
"""Times a whole number: a point where a floor or ceiling of a real number may jump."""
_INSIDE, _OUTSIDE = 2, 0
"""Draws below and above one, for points on both sides of a bend."""
_SCALES = 3  # numbers of an expression that give it more points
_POWERS = (sympy.Pow, sympy.exp, sympy.factorial, sympy.binomial)
_UNSOLVED = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit)
_INTEGER_FUNCTIONS = (
    sympy.factorial, sympy.binomial, sympy.Mod, sympy.Sum, sympy.Product, sympy.gamma, sympy.factorial2, Gcd, Lcm,
)  # fmt: skip


def is_scalar(value: object) -> bool:
    """A number or a function of numbers: no matrix, set, tuple (but for limits of sums) or relation."""
    if not isinstance(value, sympy.Expr) or isinstance(value, sympy.MatrixExpr):
        return False
    return not value.has(sympy.MatrixBase, sympy.Set) and (not value.has(sympy.Tuple) or value.has(*_SUMS))


def same_value(gold: sympy.Expr, answer: sympy.Expr) -> bool | None:
    """True or False where the values tell, None where they cannot be computed."""
    gold, answer, symbols = _named(gold, answer)
    if not symbols:
        return _same_constant(gold, answer)
    agreed: list[Point] = []
    imaginary = gold.has(sympy.I) or answer.has(sympy.I)
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
            if decisive or len(agreed) < _ENOUGH:
                return False
            continue
        agreed.append(point)
    return _same_closely(gold, answer, agreed[0]) is not False if len(agreed) >= _ENOUGH else None


def ratio(left: sympy.Expr, right: sympy.Expr) -> sympy.Expr | None:
    """The constant left / right is at every sample point, None if it is not constant
    (or cannot be computed, or is zero)."""
    left, right, symbols = _named(left, right)
    met: list[tuple[Point, sympy.Expr]] = []
    for point, _ in _points(left, right, symbols):
        above, below = value_at(left, point), value_at(right, point)
        if above is None or below is None or _vanishes(below) or _vanishes(above):
            continue
        if met and not _close(met[0][1], above / below):
            return None
        met.append((point, above / below))
    if len(met) < (_ENOUGH if symbols else 1):
        return None
    digits = _digits_needed(left, right, met[0][0])
    closer = [value for point, _ in met[:2] for value in _closely(left, right, point, digits) if value is not None]
    if digits > DIGITS and len(closer) == 4:
        above, below, other, under = closer
        return met[0][1] if _close(above / below, other / under, _tolerance(digits)) else None
    return met[0][1]


def is_undefined(expression: sympy.Basic) -> bool:
    """Is there a division by zero, a logarithm of zero or a pole in the expression, apart from unknowns?"""
    if expression.has(sympy.zoo, sympy.nan):
        return True
    zeros = [power.base for power in expression.atoms(sympy.Pow) if power.exp.could_extract_minus_sign()]
    zeros += [part.args[0] for part in expression.atoms(sympy.log)]
    zeros += [sympy.cos(part.args[0], evaluate=False) for part in expression.atoms(sympy.tan, sympy.sec)]
    zeros += [sympy.sin(part.args[0], evaluate=False) for part in expression.atoms(sympy.cot, sympy.csc)]
    values = [value_at(part, digits=5) for part in zeros if not part.free_symbols]
    return any(value is not None and _vanishes(value) for value in values)


def as_fraction(expression: sympy.Expr) -> Fraction | None:
    """A real number without symbols as an exact fraction of its printed value."""
    value = value_at(expression, digits=60)
    if value is None or not _is_real(value):
        return None
    real = value.as_real_imag()[0]
    rational = sympy.Rational(real) if real.is_Float else real
    return Fraction(int(rational.p), int(rational.q)) if rational.is_Rational else None


def value_at(
    expression: sympy.Expr, point: Mapping[sympy.Symbol, sympy.Expr] = MappingProxyType({}), digits: int = DIGITS
) -> sympy.Expr | None:
    """A finite complex number, or None; without a point that of an expression without symbols."""
    try:
        stepped = point and expression.has(*_ROUNDING) and all(value.is_Rational for value in point.values())
        if stepped or expression.has(*_UNSOLVED, sympy.factorial2, Gcd, Lcm):
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


def _named(*sides: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr, list[sympy.Symbol]]:
    """Both sides, with applications of unknown functions, f(x) or I(0), as symbols of their own; all their symbols."""
    left, right = (
        side.xreplace(calls)
        if (calls := {call: sympy.Symbol(str(call)) for call in side.atoms(AppliedUndef)})
        else side
        for side in sides
    )
    return left, right, sorted(left.free_symbols | right.free_symbols, key=lambda symbol: symbol.name)


def _points(left: sympy.Expr, right: sympy.Expr, symbols: Sequence[sympy.Symbol]) -> Iterator[tuple[Point, bool]]:
    """Sample points with whether all values are positive: integers where divisors, factorials or signs (-1)^n are
    about, and for unknowns with floors that are not those of real numbers. Where a function has steps or bends, also
    points as far out as the numbers written."""
    both = sympy.Tuple(left, right)
    rounded, steep, integers = both.has(*_ROUNDING), both.has(*_STEEP), both.has(*_INTEGER_FUNCTIONS)
    real_names = _REALS if all(symbol.name in _REALS for symbol in symbols) else _REALS_BESIDE
    powers = [power for power in both.atoms(sympy.Pow) if power.base.is_number and power.base.is_negative]
    integers = integers or any(power.exp.free_symbols for power in powers)
    reals = {symbol for symbol in symbols if not integers and (not rounded or symbol.name in real_names)}

    def at(row: int, scale: int = 1, *, negative: bool = False, whole: bool = False) -> Point:
        """A value for each unknown. negative: real ones are, of several every second. whole: real ones are whole
        numbers, or where a floor may jump."""
        point, columns = {}, _INTEGER_POINTS[row % len(_INTEGER_POINTS)]
        for index, symbol in enumerate(symbols):
            further = index >= len(columns)  # beyond the columns written down one of 2 to 13
            number = 2 + int(sample(row, index).replace(".", "")) % 12 if further else columns[index]
            value, real = sympy.Integer(number), symbol in reals
            if real:
                jump = value * _TWELFTHS if row > 2 else value
                value = jump if whole else sympy.Float(sample(row, index), DIGITS)
            minus = negative and real and (len(symbols) == 1 or (index + row) % 2 == len(symbols) % 2)
            point[symbol] = (-scale if minus else scale) * value
        return point

    for shift in range(_POINTS) if reals else ():
        positive = shift < _POSITIVE_POINTS
        yield at(shift, negative=not positive), positive
    for row in range(len(_INTEGER_POINTS)) if rounded or not reals else ():
        yield at(row, whole=True), True
    if not reals and not steep and both.has(sympy.Abs):
        yield at(0, -1), False
    if (both.has(*_BENT) or _rooted(both)) and not steep:
        # the largest whole numbers written, also as powers, without those that the sample points reach anyway
        written = [part for part in both.atoms(sympy.Integer, sympy.Pow) if part.is_integer and not part.free_symbols]
        values = [abs(value) for part in written if (value := value_at(part)) is not None and _is_real(value)]
        for scale in sorted({int(value) for value in values if 3 < value < 10**30})[-_SCALES:]:
            for shift in _INSIDE, _OUTSIDE:
                yield at(shift, scale), True
            yield at(_POINTS - 1, scale, negative=True), not reals


def _rooted(expression: sympy.Basic) -> bool:
    return any(power.exp.is_Rational and not power.exp.is_Integer for power in expression.atoms(sympy.Pow))


def _same_constant(gold: sympy.Expr, answer: sympy.Expr) -> bool | None:
    if gold.has(sympy.oo, -sympy.oo) or answer.has(sympy.oo, -sympy.oo):
        value = gold.doit()
        return bool(value == answer.doit() and value != sympy.nan)
    left, right = value_at(gold), value_at(answer)
    if left is None or right is None:
        return None
    if not _close(left, right):
        return False
    if all(atom.is_Rational for side in (gold, answer) for atom in side.atoms(sympy.Atom)):
        # where there are roots, long numbers would be factored
        values = [side.doit() for side in (gold, answer) if not _rooted(side)]
        if len(values) == 2 and all(value.is_Rational for value in values):
            return bool(values[0] == values[1])
    return _same_closely(gold, answer, {})


def _same_closely(gold: sympy.Expr, answer: sympy.Expr, point: Point) -> bool | None:
    """Equality at one point where they agree to the leading digits, in all others in which a difference may hide; None
    where those cannot be computed. Raises OutOfWork where they are too many."""
    digits = _digits_needed(gold, answer, point)
    if digits == DIGITS:
        return True
    left, right = _closely(gold, answer, point, digits)
    return None if left is None or right is None else _close(left, right, _tolerance(digits))


def _digits_needed(gold: sympy.Expr, answer: sympy.Expr, point: Point) -> int:
    hidden = _hidden_digits(gold, point) + _hidden_digits(answer, point)
    if hidden > _MOST_DIGITS - 100:
        raise OutOfWork
    return 100 + hidden if hidden or not (gold.has(*_UNSOLVED) or answer.has(*_UNSOLVED)) else DIGITS


def _closely(left: sympy.Expr, right: sympy.Expr, point: Point, digits: int) -> list[sympy.Expr | None]:
    """The values at the same point in more digits."""
    exact = {symbol: value if value.is_Rational else sympy.Float(value, digits) for symbol, value in point.items()}
    return [value_at(side, exact, digits) for side in (left, right)]


def _tolerance(digits: int) -> sympy.Float:
    return sympy.Float(10, digits) ** (20 - digits)


def _hidden_digits(expression: sympy.Expr, point: Point) -> int:
    r"""Number of digits below the leading ones in which a difference may hide: the spread of the terms of sums
    (1-2^{-2016}, x+e^{-100}), the length of written numbers, and the size of powers and of what grows as they do; 0
    where there are none of these."""
    numbers = expression.atoms(sympy.Rational)
    hidden = max((max(abs(number.p), number.q).bit_length() * 3 // 10 for number in numbers), default=0)
    hidden = hidden if hidden > DIGITS // 2 else 0
    spreads = 0
    for total in expression.atoms(sympy.Add):
        sizes = [size for term in total.args if (size := _decimal_size(term, point)) is not None]
        spread = max(sizes) - min(sizes) if sizes else 0
        spreads += spread + DIGITS if spread > DIGITS // 4 else 0
    powers = [part for part in expression.atoms(*_POWERS) if not part.free_symbols]
    powers += [sympy.exp(2 * part.args[0]) for part in expression.atoms(HyperbolicFunction)]
    sizes = [min(abs(_decimal_size(part, point) or 0), _MOST_HIDDEN) for part in powers]
    return hidden + max([spreads, *(size for size in sizes if size > DIGITS // 2)])


def _decimal_size(term: sympy.Expr, point: Point) -> int | None:
    """log10 of the magnitude of a term, roughly; None for 0 and what has no value."""
    value = value_at(term, point, 5)
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


_FIGURES = 50
with mpmath.workdps(_FIGURES + 5):
    _MPMATH = Arithmetic(mpmath.mpc, mpmath.sqrt, mpmath.mpc(+mpmath.pi), mpmath.mpc(+mpmath.e), mpmath.mpc(0, 1))
_ORDERED = (sympy.StrictLessThan, sympy.LessThan, sympy.StrictGreaterThan, sympy.GreaterThan)
_SUMS = (sympy.Sum, sympy.Product, sympy.Integral)
"""Inequalities with these are not solved: sympy recurses in them until the stack is full."""


class Judge:
    """Decisions of a worker: one answer against one gold, and whether a gold can be read at all. Tolerances apply to
    constants only."""

    def __init__(self, relative: float = 0.0, absolute: float = 0.0):
        self._relative, self._absolute = Fraction(relative), Fraction(absolute)
        self._comparer = Comparer(self._equal, relative, absolute)

    def grade(self, gold: str, answer: str) -> tuple[bool, str]:
        """(correct, reason)."""
        if self._comparer.equal(gold, answer):
            return True, "symbolic" if self._comparer.used_symbolic else "exact"
        return False, self._comparer.note

    def check(self, gold: str) -> tuple[bool, str]:
        """(parsable, why not)."""
        if not canonical(gold):
            return False, "empty"
        missed = unread(gold, lambda text: to_sympy(text) is not None)
        return not missed, "cannot read " + "; ".join(missed) if missed else ""

    def _equal(self, gold: str, answer: str) -> bool:
        """Two expressions or relations, as canonical texts."""
        if not self._relative and not self._absolute:
            with mpmath.workdps(_FIGURES):
                if same(gold, answer, _MPMATH, _FIGURES):
                    return True
        left, right = unpaid(to_sympy, gold), to_sympy(answer)
        if left is None or right is None or left.has(sympy.zoo, sympy.nan) or right.has(sympy.zoo, sympy.nan):
            return False
        if is_scalar(left) and is_scalar(right):
            verdict = self._scalars(gold, left, answer, right)
            if "\\log" in gold + answer:
                return bool(verdict) or self._natural_logarithm(gold, answer)
            return _math_verify(left, right) if verdict is None else verdict
        if left == right:
            return True
        equations = [isinstance(side, sympy.Equality) for side in (left, right)]
        if all(equations):
            return _equations(left, right)
        if isinstance(left, _ORDERED) and isinstance(right, _ORDERED) and _inequalities(left, right):
            return True
        if any(equations):
            return False
        matrices = _matrices(left, right)
        if matrices is not None:
            return matrices
        return _same_set(left, right) if _is_condition(left) or _is_condition(right) else _math_verify(left, right)

    def _scalars(self, gold: str, left: sympy.Expr, answer: str, right: sympy.Expr) -> bool | None:
        if left == right:
            return not is_undefined(left)
        if not left.free_symbols and not right.free_symbols and self._near(gold, left, answer, right):
            return True
        return same_value(left, right)

    def _near(self, gold: str, left: sympy.Expr, answer: str, right: sympy.Expr) -> bool:
        """A decimal that rounds the other side, or constants within the tolerances."""
        gold_number, answer_number = parse_number(gold), parse_number(answer)
        decimal = bool(gold_number and gold_number.ulp) or bool(answer_number and answer_number.ulp)
        if not decimal and not self._relative and not self._absolute:
            return False
        mine, theirs = as_fraction(left), as_fraction(right)
        if mine is None or theirs is None:
            return False
        difference = abs(mine - theirs)
        if difference <= self._relative * abs(mine) or difference <= self._absolute:
            return True
        if gold_number and gold_number.ulp and gold_number.rounds(theirs, GOLD_DIGITS):
            return True
        return bool(answer_number and answer_number.ulp and answer_number.rounds(mine, ANSWER_DIGITS))

    def _natural_logarithm(self, gold: str, answer: str) -> bool:
        r"""\log without a base is the decimal logarithm to the parser;
        read it as the natural one as well, on both sides."""
        natural_gold, natural_answer = (
            text.replace("\\log _", "\\log_").replace("\\log", "\\ln").replace("\\ln_", "\\log_")
            for text in (gold, answer)
        )
        left, right = unpaid(to_sympy, natural_gold), to_sympy(natural_answer)
        read = left is not None and right is not None and is_scalar(left) and is_scalar(right)
        return read and bool(self._scalars(gold, left, answer, right))


def _equations(left: sympy.Equality, right: sympy.Equality) -> bool:
    """Equations are the same when one is a constant multiple of the other, or when both have the same solutions."""
    mine, theirs = left.lhs - left.rhs, right.lhs - right.rhs
    if not is_scalar(mine) or not is_scalar(theirs):
        return _math_verify(left, right)
    if ratio(mine, theirs) is not None:
        return True
    if mine.free_symbols != theirs.free_symbols:
        return False
    for symbol in sorted(mine.free_symbols, key=lambda symbol: symbol.name):
        try:
            first, second = sympy.solve(mine, symbol), sympy.solve(theirs, symbol)
        except NotImplementedError:
            continue
        if first and second and not any(isinstance(root, dict) for root in first + second):
            return len(first) == len(second) and all(any(same_value(root, other) for other in second) for root in first)
    return False


def _inequalities(left: sympy.core.relational.Relational, right: sympy.core.relational.Relational) -> bool:
    """Inequalities are the same when one is a multiple of the other, the sign turned for a negative factor."""
    if ("=" in left.rel_op) != ("=" in right.rel_op):
        return False
    mine, theirs = left.lhs - left.rhs, right.lhs - right.rhs
    if left.rel_op[0] != right.rel_op[0]:
        theirs = -theirs
    factor = ratio(mine, theirs) if is_scalar(mine) and is_scalar(theirs) else None
    return factor is not None and bool(factor.is_positive)


def _is_condition(value: sympy.Basic) -> bool:
    return all(isinstance(part, _ORDERED) for part in (value.args if isinstance(value, And) else (value,)))


def _same_set(left: sympy.Basic, right: sympy.Basic) -> bool:
    """The solutions of inequalities in one variable, also against an interval."""
    symbols = {symbol for side in (left, right) if _is_condition(side) for symbol in side.free_symbols}
    if len(symbols) != 1 or left.has(*_SUMS) or right.has(*_SUMS):
        return False
    first, second = (
        sympy.And(*side.args).as_set() if isinstance(side, And) else side.as_set() if _is_condition(side) else side
        for side in (left, right)
    )
    return isinstance(first, sympy.Set) and isinstance(second, sympy.Set) and bool(first == second)


def _matrices(left: sympy.Basic, right: sympy.Basic) -> bool | None:
    """Entry by entry; None unless both sides are matrices once evaluated."""
    kinds = (sympy.MatrixBase, sympy.MatrixExpr)
    if not isinstance(left, kinds) and not isinstance(right, kinds):
        return None
    first, second = left.doit(), right.doit()
    if not isinstance(first, sympy.MatrixBase) or not isinstance(second, sympy.MatrixBase):
        return False
    return first.shape == second.shape and all(
        same_value(a, b) for a, b in zip(first.flat(), second.flat(), strict=True)
    )


def _math_verify(left: sympy.Basic, right: sympy.Basic) -> bool:
    """math-verify's own comparison, its timeouts off: the parent's budget rules."""
    return bool(verify(left, right, timeout_seconds=None, allow_set_relation_comp=True))
