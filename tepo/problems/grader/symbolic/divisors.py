"""Greatest common divisors and least common multiples of integers. Imported by workers only.

The parser computes those of polynomials, to which all unknowns are coprime: gcd(m, n) would be 1. These wait until
their arguments are integers."""

import math
from typing import Any

import sympy

from tepo.problems.grader.symbolic.allowance import charge

_BIT_PAIRS = 300_000  # of two integers, that one tick brings together


class Gcd(sympy.Function):
    compute: Any = math.gcd

    @classmethod
    def eval(cls, *numbers: Any) -> sympy.Integer | None:
        if not all(isinstance(number, sympy.Integer) for number in numbers):
            return None
        lengths = sorted(number.p.bit_length() for number in numbers)
        charge(len(lengths) * lengths[-1] * lengths[-2:][0] // _BIT_PAIRS)
        return sympy.Integer(cls.compute(*(number.p for number in numbers)))


class Lcm(Gcd):
    compute = math.lcm
