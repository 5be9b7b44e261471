"""Every task of the laptop scale by name; the number in a name is its size (digits, bits, numbers)."""

from tepo.problems.procedural.long_tasks import binary, long_multiplication, progression, sorting
from tepo.problems.procedural.tasks import (
    Task,
    addition,
    digit_sum,
    divisor_chain,
    draw_divisor,
    draw_equation,
    equation_chain,
    maximum,
    multiplication,
    remainder,
)

TASKS: dict[str, Task] = {
    **{f"add{digits}": addition(digits) for digits in range(2, 13)},
    **{f"mul{digits}": multiplication(digits) for digits in range(2, 11)},
    **{f"mod{digits}": remainder(digits) for digits in range(3, 17)},
    **{f"max{numbers}": maximum(numbers) for numbers in range(2, 9)},
    **{f"ds{digits}": digit_sum(digits) for digits in range(3, 25)},
    **{f"sort{digits}": sorting(digits) for digits in range(3, 15)},
    **{f"bin{bits}": binary(bits) for bits in range(3, 13)},
    **{f"run{steps}": progression(steps) for steps in range(2, 31)},
    "mul22": long_multiplication(),
    "gcd": Task(draw_divisor, lambda operands: f"gcd({operands[0]},{operands[1]})=", divisor_chain),
    "lin": Task(draw_equation, lambda operands: f"{operands[0]}x+{operands[1]}={operands[2]},x=", equation_chain),
}
