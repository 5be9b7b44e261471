"""Tasks with many small steps, for the sparse mix and for chains of three lengths."""

from random import Random

from tepo.problems.procedural.tasks import Operands, Slip, Task, columns, digits_of, draw_number, near, products


def long_multiplication() -> Task:
    """`47*86=`: two rows of digit products, then their sum column by column,
    `7*6=42,4*6=24+4=28,7*8=56,4*8=32+5=37,2+0=2,8+6=14,2+7+1=10,0+3+1=4,`."""

    def chain(operands: Operands, slip: Slip) -> tuple[str, int]:
        left, right = operands
        low_text, low = products(left, right % 10, 2, slip)
        high_text, high = products(left, right // 10, 2, slip)
        sum_text, answer = columns(low, 10 * high, 4, slip)
        return low_text + high_text + sum_text, answer

    def draw(random: Random) -> Operands:
        return draw_number(random, 2), draw_number(random, 2)

    return Task(draw, lambda operands: f"{operands[0]}*{operands[1]}=", chain)


def _draw_bits(random: Random, bits: int) -> int:
    """A number of `bits` binary digits, or one or two fewer, so that there are enough of them."""
    return random.randrange(max(2, 2 ** (bits - 3)), 2**bits)


def binary(bits: int) -> Task:
    """`345:2=`: halving with the remainder until nothing is left, `345/2=172+1,172/2=86+0,…`;
    the answer is the number in base 2."""

    def chain(operands: Operands, slip: Slip) -> tuple[str, int]:
        text, value, answer, power = "", operands[0], 0, 1
        while value and power < 10**bits:
            half = slip(value // 2, [other for other in near(value // 2) if other < value])
            text += f"{value}/2={half}+{value % 2},"
            answer += power * (value % 2)
            value, power = half, power * 10
        return text, answer

    return Task(lambda random: (_draw_bits(random, bits),), lambda operands: f"{operands[0]}:2=", chain)


def sorting(digits: int) -> Task:
    """`sort(4171)=`: insertion into a sorted row, `4,14,147,1147,`; digits are 1 … 9, the answer is the last row."""

    def chain(operands: Operands, slip: Slip) -> tuple[str, int]:
        text, row = "", 0
        for digit in reversed(digits_of(operands[0], digits)):
            ordered = int("".join(sorted(f"{row or ''}{digit}")))
            row = slip(ordered, [10 * row + digit])
            text += f"{row},"
        return text, row

    def draw(random: Random) -> Operands:
        return (int("".join(str(random.randrange(1, 10)) for _ in range(digits))),)

    return Task(draw, lambda operands: f"sort({operands[0]})=", chain)


def progression(steps: int) -> Task:
    """`345+7*3=`: the factor is added again and again, each sum behind its number, `1:352,2:359,3:366,`.

    A step reads the one before it and nothing further back, so that a chain of any length asks for the same skill.
    """

    def chain(operands: Operands, slip: Slip) -> tuple[str, int]:
        text, (value, addend) = "", operands
        for step in range(1, steps + 1):
            value = slip(value + addend, near(value + addend))
            text += f"{step}:{value},"
        return text, value

    def draw(random: Random) -> Operands:
        return draw_number(random, 3), random.randrange(2, 10)

    return Task(draw, lambda operands: f"{operands[0]}+{operands[1]}*{steps}=", chain)
