"""Arithmetic tasks of the laptop scale: compact symbolic prompts and short chains of thought that a tiny model can
learn.

A task draws operands, prints them as a prompt, and writes the chain that leads to the answer. Every result in a chain
goes through `slip`, the identity for a clean chain. A slip that returns a wrong result is carried on with, as a person
who miscounts once would, so that noisy chains stay consistent with themselves."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from tepo.problems.procedural.task import Operands, Slip, Task
from tepo.problems.procedural.word_problems import STORIES, draw_story, solve, tell, wording


def near(value: int) -> list[int]:
    """Results a careless reckoner might write instead of `value`: never negative, never `value` itself."""
    return [other for step in (1, 2, 10) for other in (value - step, value + step) if other >= 0]


def digits_of(value: int, count: int) -> list[int]:
    """The `count` lowest decimal digits, lowest first."""
    return [value // 10**index % 10 for index in range(count)]


def columns(one: int, two: int, width: int, slip: Slip) -> tuple[str, int]:
    """The sum of two numbers of `width` digits, from the right with the carry: the working and the result."""
    text, carry, answer = "", 0, 0
    for index, (upper, lower) in enumerate(zip(digits_of(one, width), digits_of(two, width), strict=True)):
        total = slip(upper + lower + carry, near(upper + lower + carry))
        text += f"{upper}+{lower}+{carry}={total}," if index else f"{upper}+{lower}={total},"
        answer += 10**index * (total if index == width - 1 else total % 10)
        carry = total // 10
    return text, answer


def products(number: int, factor: int, width: int, slip: Slip) -> tuple[str, int]:
    """A number of `width` digits times one digit, from the right with the carry: the working and the result."""
    text, carry, answer = "", 0, 0
    for index, digit in enumerate(digits_of(number, width)):
        total = slip(digit * factor, near(digit * factor))
        text += f"{digit}*{factor}={total}"
        if index:
            total = slip(total + carry, near(total + carry))
            text += f"+{carry}={total}"
        text += ","
        answer += 10**index * (total if index == width - 1 else total % 10)
        carry = total // 10
    return text, answer


def added(operands: Operands, slip: Slip) -> tuple[str, int]:
    """`347+285=`: column by column, `7+5=12,4+8+1=13,3+2+1=6,`."""
    return columns(operands[0], operands[1], len(str(operands[0])), slip)


def multiplied(operands: Operands, slip: Slip) -> tuple[str, int]:
    """`347*6=`: digit times digit plus carry, `7*6=42,4*6=24+4=28,3*6=18+2=20,`."""
    return products(operands[0], operands[1], len(str(operands[0])), slip)


def remainder(operands: Operands, slip: Slip) -> tuple[str, int]:
    """`7385%7=`: long division that keeps the remainders only, `7%7=0,3%7=3,38%7=3,35%7=0,`."""
    text, rest, divisor = "", 0, operands[1]
    for digit in str(operands[0]):
        part = 10 * rest + int(digit)
        rest = slip(part % divisor, [other for other in range(divisor) if other != part % divisor])
        text += f"{part}%{divisor}={rest},"
    return text, rest


def divisor(operands: Operands, slip: Slip) -> tuple[str, int]:
    text, (high, low) = "", operands
    while low:
        rest = slip(high % low, [other for other in near(high % low) if other < low])
        text += f"{high}%{low}={rest},"
        high, low = low, rest
    return text, high


def draw_divisor(random: Random) -> Operands:
    """Two numbers up to 99, the larger first, whose common divisor is spread evenly over 1 … 12
    (a plain draw gives 1 in 61%)."""
    divisor = random.randrange(1, 13)
    while True:
        high = random.randrange(2, 99 // divisor + 1)
        low = random.randrange(1, high)
        if math.gcd(high, low) == 1 and high * divisor >= 10:
            return high * divisor, low * divisor


def maximum(operands: Operands, slip: Slip) -> tuple[str, int]:
    """`max(345,822,174,558)=`: the running maximum, `345,822,822,822,`."""
    best = operands[0]
    text = f"{best},"
    for number in operands[1:]:
        best = slip(max(best, number), [min(best, number)])
        text += f"{best},"
    return text, best


def root(operands: Operands, slip: Slip) -> tuple[str, int]:
    factor, offset, right = operands
    product = slip(right - offset, near(right - offset))
    root = slip(product // factor, near(product // factor))
    return f"{right}-{offset}={product},{product}/{factor}={root},", root


def draw_equation(random: Random) -> Operands:
    factor, root, offset = random.randrange(2, 10), random.randrange(2, 13), random.randrange(1, 31)
    return factor, offset, factor * root + offset


def digit_sum(operands: Operands, slip: Slip) -> tuple[str, int]:
    """`sum(483920)=`: running sums, `4+8=12+3=15+9=24+2=26+0=26,`."""
    first, *others = map(int, str(operands[0]))
    text, total = f"{first}", first
    for digit in others:
        total = slip(total + digit, near(total + digit))
        text += f"+{digit}={total}"
    return text + ",", total


def multiplied_long(operands: Operands, slip: Slip) -> tuple[str, int]:
    """`47*86=`: two rows of digit products, then their sum column by column,
    `7*6=42,4*6=24+4=28,7*8=56,4*8=32+5=37,2+0=2,8+6=14,2+7+1=10,0+3+1=4,`."""
    left, right = operands
    low_text, low = products(left, right % 10, 2, slip)
    high_text, high = products(left, right // 10, 2, slip)
    sum_text, answer = columns(low, 10 * high, 4, slip)
    return low_text + high_text + sum_text, answer


def binary(bits: int, operands: Operands, slip: Slip) -> tuple[str, int]:
    """`345:2=`: halving with the remainder until nothing is left, `345/2=172+1,172/2=86+0,…`;
    the answer is the number in base 2."""
    text, value, answer, power = "", operands[0], 0, 1
    while value and power < 10**bits:
        half = slip(value // 2, [other for other in near(value // 2) if other < value])
        text += f"{value}/2={half}+{value % 2},"
        answer += power * (value % 2)
        value, power = half, power * 10
    return text, answer


def draw_bits(bits: int, random: Random) -> Operands:
    """A number of so many bits, or of one or two fewer, so that there are enough."""
    return (random.randrange(max(2, 2 ** (bits - 3)), 2**bits),)


def sorting(operands: Operands, slip: Slip) -> tuple[str, int]:
    """`sort(4171)=`: insertion into a sorted row, `4,14,147,1147,`; digits are 1 … 9, the answer is the last row."""
    text, row = "", 0
    for digit in str(operands[0]):
        ordered = int("".join(sorted(f"{row or ''}{digit}")))
        row = slip(ordered, [10 * row + int(digit)])
        text += f"{row},"
    return text, row


def draw_digits(count: int, random: Random) -> Operands:
    return (int("".join(str(random.randrange(1, 10)) for _ in range(count))),)


def progression(steps: int, operands: Operands, slip: Slip) -> tuple[str, int]:
    """`345+7*3=`: the factor is added again and again, each sum behind its number, `1:352,2:359,3:366,`. A step reads
    the one before it and nothing further back, so that a chain of any length asks for the same skill."""
    text, (value, addend) = "", operands
    for step in range(1, steps + 1):
        value = slip(value + addend, near(value + addend))
        text += f"{step}:{value},"
    return text, value


def draw(*digits: int, beside: Sequence[int] = ()) -> Callable[[Random], Operands]:
    """Numbers of so many digits, and one of those that may stand beside them."""

    def drawn(random: Random) -> Operands:
        numbers = [random.randrange(10 ** (count - 1), 10**count) for count in digits]
        return (*numbers, random.choice(beside)) if beside else tuple(numbers)

    return drawn


_FACTORS, _DIVISORS = range(2, 10), range(3, 10)
TASKS: dict[str, Task] = {
    **{f"add{digits}": Task(draw(digits, digits), "{}+{}=".format, added) for digits in range(2, 13)},
    **{f"mul{digits}": Task(draw(digits, beside=_FACTORS), "{}*{}=".format, multiplied) for digits in range(2, 11)},
    **{f"mod{digits}": Task(draw(digits, beside=_DIVISORS), "{}%{}=".format, remainder) for digits in range(3, 17)},
    **{
        f"max{count}": Task(draw(*[3] * count), f"max({','.join(['{}'] * count)})=".format, maximum)
        for count in range(2, 9)
    },
    **{f"ds{digits}": Task(draw(digits), "sum({})=".format, digit_sum) for digits in range(3, 25)},
    **{f"sort{digits}": Task(partial(draw_digits, digits), "sort({})=".format, sorting) for digits in range(3, 15)},
    **{f"bin{bits}": Task(partial(draw_bits, bits), "{}:2=".format, partial(binary, bits)) for bits in range(3, 13)},
    **{
        f"run{steps}": Task(draw(3, beside=_FACTORS), f"{{}}+{{}}*{steps}=".format, partial(progression, steps))
        for steps in range(2, 31)
    },
    **{
        f"{name}{steps}": Task(partial(draw_story, scenes, steps, sizes), partial(tell, scenes), solve, wording)
        for name, (scenes, sizes) in STORIES.items()
        for steps in range(1, 7)
    },
    "mul22": Task(draw(2, 2), "{}*{}=".format, multiplied_long),
    "gcd": Task(draw_divisor, "gcd({},{})=".format, divisor),
    "lin": Task(draw_equation, "{}x+{}={},x=".format, root),
}
