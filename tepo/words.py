"""Words of messages."""


def counted(number: int, noun: str) -> str:
    """`1 run`, `5,120 runs`: a number with its noun, whose plural ends in s."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
