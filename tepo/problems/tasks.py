"""Arithmetic tasks of the laptop scale: compact symbolic prompts and short chains of thought that a tiny model can learn.

A task draws operands, prints them as a prompt, and writes the chain that leads to the answer. Every result in a chain
goes through `slip`, the identity for a clean chain. A slip that returns a wrong result is carried on with, as a person who
miscounts once would, so that noisy chains stay consistent with themselves.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

Operands = tuple[int, ...]
Slip = Callable[[int, Sequence[int]], int]  # (right result, plausible wrong ones) -> the result that is written


@dataclass(frozen=True, slots=True)
class Task:
    """`draw(random)` gives operands, `prompt(operands)` their text, `chain(operands, slip)` the working and the answer."""

    draw: Callable[[Random], Operands]
    prompt: Callable[[Operands], str]
    chain: Callable[[Operands, Slip], tuple[str, int]]


def exact(value: int, wrong: Sequence[int]) -> int:
    """The slip that never happens."""
    return value


def near(value: int) -> list[int]:
    """Results a careless reckoner might write instead of `value`: never negative, never `value` itself."""
    return [other for step in (1, 2, 10) for other in (value - step, value + step) if other >= 0]


def _digits(value: int, count: int) -> list[int]:
    """The `count` lowest decimal digits, lowest first."""
    return [value // 10**place % 10 for place in range(count)]


def _number(random: Random, digits: int) -> int:
    return random.randrange(10 ** (digits - 1), 10**digits)


def addition(digits: int) -> Task:
    """`347+285=`: column by column from the right with the carry, `7+5=12,4+8+1=13,3+2+1=6,`."""

    def chain(operands: Operands, slip: Slip) -> tuple[str, int]:
        text, carry, answer = "", 0, 0
        columns = list(zip(_digits(operands[0], digits), _digits(operands[1], digits), strict=True))
        for place, (one, two) in enumerate(columns):
            total = slip(one + two + carry, near(one + two + carry))
            text += f"{one}+{two}+{carry}={total}," if place else f"{one}+{two}={total},"
            last = place == digits - 1
            answer += 10**place * (total if last else total % 10)
            carry = total // 10
        return text, answer

    return Task(lambda random: (_number(random, digits), _number(random, digits)), lambda operands: f"{operands[0]}+{operands[1]}=", chain)


def multiplication(digits: int) -> Task:
    """`347*6=`: digit times digit plus carry, `7*6=42,4*6=24+4=28,3*6=18+2=20,`."""

    def chain(operands: Operands, slip: Slip) -> tuple[str, int]:
        text, carry, answer = "", 0, 0
        factor = operands[1]
        for place, digit in enumerate(_digits(operands[0], digits)):
            total = slip(digit * factor, near(digit * factor))
            text += f"{digit}*{factor}={total}"
            if place:
                total = slip(total + carry, near(total + carry))
                text += f"+{carry}={total}"
            text += ","
            answer += 10**place * (total if place == digits - 1 else total % 10)
            carry = total // 10
        return text, answer

    return Task(lambda random: (_number(random, digits), random.randrange(2, 10)), lambda operands: f"{operands[0]}*{operands[1]}=", chain)


def remainder(digits: int) -> Task:
    """`7385%7=`: long division that keeps the remainders only, `7%7=0,3%7=3,38%7=3,35%7=0,`."""

    def chain(operands: Operands, slip: Slip) -> tuple[str, int]:
        text, rest = "", 0
        divisor = operands[1]
        for digit in reversed(_digits(operands[0], digits)):
            part = 10 * rest + digit
            rest = slip(part % divisor, [other for other in range(divisor) if other != part % divisor])
            text += f"{part}%{divisor}={rest},"
        return text, rest

    return Task(lambda random: (_number(random, digits), random.randrange(3, 10)), lambda operands: f"{operands[0]}%{operands[1]}=", chain)


def _divisor_chain(operands: Operands, slip: Slip) -> tuple[str, int]:
    text, (high, low) = "", operands
    while low:
        rest = slip(high % low, [other for other in near(high % low) if other < low])
        text += f"{high}%{low}={rest},"
        high, low = low, rest
    return text, high


def _divisor_draw(random: Random) -> Operands:
    """Two numbers up to 99, the larger first, whose common divisor is spread evenly over 1 … 12 (a plain draw gives 1 in 61%)."""
    divisor = random.randrange(1, 13)
    while True:
        high = random.randrange(2, 99 // divisor + 1)
        low = random.randrange(1, high)
        if math.gcd(high, low) == 1 and high * divisor >= 10:
            return high * divisor, low * divisor


def maximum(count: int) -> Task:
    """`max(345,822,174,558)=`: the running maximum, `345,822,822,822,`."""

    def chain(operands: Operands, slip: Slip) -> tuple[str, int]:
        best = operands[0]
        text = f"{best},"
        for number in operands[1:]:
            best = slip(max(best, number), [min(best, number)])
            text += f"{best},"
        return text, best

    return Task(lambda random: tuple(_number(random, 3) for _ in range(count)), lambda operands: f"max({','.join(map(str, operands))})=", chain)


def _equation_chain(operands: Operands, slip: Slip) -> tuple[str, int]:
    factor, offset, right = operands
    product = slip(right - offset, near(right - offset))
    root = slip(product // factor, near(product // factor))
    return f"{right}-{offset}={product},{product}/{factor}={root},", root


def _equation_draw(random: Random) -> Operands:
    factor, root, offset = random.randrange(2, 10), random.randrange(2, 21), random.randrange(1, 100)
    return factor, offset, factor * root + offset


def digit_sum(digits: int) -> Task:
    """`sum(483920)=`: running sums, `4+8=12+3=15+9=24+2=26+0=26,`."""

    def chain(operands: Operands, slip: Slip) -> tuple[str, int]:
        first, *others = reversed(_digits(operands[0], digits))
        text, total = f"{first}", first
        for digit in others:
            total = slip(total + digit, near(total + digit))
            text += f"+{digit}={total}"
        return text + ",", total

    return Task(lambda random: (_number(random, digits),), lambda operands: f"sum({operands[0]})=", chain)


TASKS: dict[str, Task] = {
    "add2": addition(2),
    "add3": addition(3),
    "add4": addition(4),
    "mul2": multiplication(2),
    "mul3": multiplication(3),
    "mod3": remainder(3),
    "mod4": remainder(4),
    "gcd": Task(_divisor_draw, lambda operands: f"gcd({operands[0]},{operands[1]})=", _divisor_chain),
    "max3": maximum(3),
    "max4": maximum(4),
    "lin": Task(_equation_draw, lambda operands: f"{operands[0]}x+{operands[1]}={operands[2]},x=", _equation_chain),
    "ds4": digit_sum(4),
    "ds6": digit_sum(6),
}
