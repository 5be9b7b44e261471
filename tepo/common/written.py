"""Numbers that keep the text they were written with: 7e5, 010 and 1_000 in a place for text are text."""


class WrittenNumber:
    """A number of a file. text: as it is written there."""

    text: str


class WrittenInt(int, WrittenNumber):
    """A whole number."""

    def __new__(cls, value: int, text: str = "") -> "WrittenInt":
        number = super().__new__(cls, value)
        number.text = text
        return number


class WrittenFloat(float, WrittenNumber):
    """A number with a point or an exponent."""

    def __new__(cls, value: float | str, text: str = "") -> "WrittenFloat":
        number = super().__new__(cls, value)
        number.text = text
        return number
