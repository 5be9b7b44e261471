"""Two expressions through sympy: by value first, then by math-verify. Imported by workers only."""

from fractions import Fraction

import mpmath
import sympy
from latex2sympy2_extended.logic import And
from math_verify import verify

from tepo.problems.grader.kinds.numbers.number import ANSWER_DIGITS, GOLD_DIGITS, parse_number
from tepo.problems.grader.kinds.numbers.simple_expression import Arithmetic, same
from tepo.problems.grader.symbolic.allowance import unpaid
from tepo.problems.grader.symbolic.parser import to_sympy
from tepo.problems.grader.symbolic.values import as_fraction, constant, is_scalar, is_undefined, ratio, same_value

_DIGITS = 50
with mpmath.workdps(_DIGITS + 5):
    _MPMATH = Arithmetic(mpmath.mpc, mpmath.sqrt, mpmath.mpc(+mpmath.pi), mpmath.mpc(+mpmath.e), mpmath.mpc(0, 1))
_BELOW = (sympy.StrictLessThan, sympy.LessThan)
_ABOVE = (sympy.StrictGreaterThan, sympy.GreaterThan)
_STRICT = (sympy.StrictLessThan, sympy.StrictGreaterThan)
_UNSOLVED = (sympy.Sum, sympy.Product, sympy.Integral)
"""Inequalities with these are not solved: sympy recurses in them until the stack is full."""


class SymbolicComparison:
    """Callable (gold, answer) -> equal, on canonical texts. Tolerances apply to constants only."""

    def __init__(self, relative: float = 0.0, absolute: float = 0.0):
        self._relative, self._absolute = Fraction(relative), Fraction(absolute)

    def __call__(self, gold: str, answer: str) -> bool:
        if not self._relative and not self._absolute:
            with mpmath.workdps(_DIGITS):
                if same(gold, answer, _MPMATH, _DIGITS):
                    return True
        left, right = unpaid(to_sympy, gold), to_sympy(answer)
        if left is None or right is None or left.has(sympy.zoo, sympy.nan) or right.has(sympy.zoo, sympy.nan):
            return False
        if is_scalar(left) and is_scalar(right):
            verdict = self._scalars(gold, left, answer, right)
            if verdict is None and "\\log" in gold + answer:
                verdict = False
            if not verdict and "\\log" in gold + answer:
                return self._natural_logarithm(gold, answer)
            return bool(verdict) if verdict is not None else _math_verify(left, right)
        if left == right:
            return True
        if isinstance(left, sympy.Equality) and isinstance(right, sympy.Equality):
            return _equations(left, right)
        ordered = (*_BELOW, *_ABOVE)
        if isinstance(left, ordered) and isinstance(right, ordered) and _inequalities(left, right):
            return True
        if isinstance(left, sympy.Equality) != isinstance(right, sympy.Equality):
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
        written, given = parse_number(gold), parse_number(answer)
        decimal = bool(written and written.ulp) or bool(given and given.ulp)
        if not decimal and not self._relative and not self._absolute:
            return False
        first, second = constant(left, 60), constant(right, 60)
        if first is None or second is None:
            return False
        mine, theirs = as_fraction(first), as_fraction(second)
        if mine is None or theirs is None:
            return False
        difference = abs(mine - theirs)
        if difference <= self._relative * abs(mine) or difference <= self._absolute:
            return True
        if written and written.ulp and written.rounds(theirs, GOLD_DIGITS):
            return True
        return bool(given and given.ulp and given.rounds(mine, ANSWER_DIGITS))

    def _natural_logarithm(self, gold: str, answer: str) -> bool:
        r"""\log without a base is the decimal logarithm to the parser;
        read it as the natural one as well, on both sides."""
        natural, given = (
            text.replace("\\log _", "\\log_").replace("\\log", "\\ln").replace("\\ln_", "\\log_")
            for text in (gold, answer)
        )
        left, right = unpaid(to_sympy, natural), to_sympy(given)
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
    if isinstance(left, _STRICT) != isinstance(right, _STRICT):
        return False
    mine, theirs = left.lhs - left.rhs, right.lhs - right.rhs
    if isinstance(left, _BELOW) != isinstance(right, _BELOW):
        theirs = -theirs
    factor = ratio(mine, theirs) if is_scalar(mine) and is_scalar(theirs) else None
    return factor is not None and bool(factor.is_positive)


def _is_condition(value: sympy.Basic) -> bool:
    return isinstance(value, (*_BELOW, *_ABOVE)) or (
        isinstance(value, And) and all(isinstance(part, (*_BELOW, *_ABOVE)) for part in value.args)
    )


def _same_set(left: sympy.Basic, right: sympy.Basic) -> bool:
    """The solutions of inequalities in one variable, also against an interval."""
    symbols = {symbol for side in (left, right) if _is_condition(side) for symbol in side.free_symbols}
    if len(symbols) != 1 or left.has(*_UNSOLVED) or right.has(*_UNSOLVED):
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
