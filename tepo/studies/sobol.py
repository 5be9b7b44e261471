"""Points that fill the unit cube evenly: Sobol's sequence (1967) with the direction numbers of Joe and Kuo (2008,
new-joe-kuo-6.21201), each axis scrambled as Owen (1995) does.

Of the first 2^k points one lies in each of the 2^k equal parts of every axis. The scrambling is a hash of words, so a
point is the same on every machine and under every version of a library, and costs no import.
"""

from tepo.common.randomness import derive

BITS = 30
_POLYNOMIALS = (
    (1, 0, (1,)),
    (2, 1, (1, 3)),
    (3, 1, (1, 3, 1)),
    (3, 2, (1, 1, 1)),
    (4, 1, (1, 1, 3, 3)),
    (4, 4, (1, 3, 5, 13)),
    (5, 2, (1, 1, 5, 5, 17)),
    (5, 4, (1, 1, 5, 5, 5)),
    (5, 7, (1, 1, 7, 11, 19)),
)  # of the axes after the first: degree, inner coefficients, first direction numbers
AXES = 1 + len(_POLYNOMIALS)


def sobol(axis: int, number: int) -> int:
    """Coordinate of a point on an axis below `AXES`, in 2^-BITS; points in the order of Gray's code."""
    coordinate, gray = 0, number ^ (number >> 1)
    for bit, direction in enumerate(_directions(axis, gray.bit_length())):
        if gray >> bit & 1:
            coordinate ^= direction << (BITS - 1 - bit)
    return coordinate


def scrambled(coordinate: int, words: str) -> float:
    """The coordinate in [0, 1) with each of its bits flipped or not by a hash of the words and of the bits above it."""
    flipped = 0
    for bit in range(BITS):
        above = coordinate >> (BITS - bit)
        flipped = flipped << 1 | (coordinate >> (BITS - 1 - bit) ^ derive(0, "scramble", words, bit, above)) & 1
    return flipped / 2**BITS


def _directions(axis: int, count: int) -> list[int]:
    """The first direction numbers m_1, m_2 … of an axis (Bratley and Fox 1988, equation 2)."""
    if axis == 0:
        return [1] * count
    degree, inner, first = _POLYNOMIALS[axis - 1]
    numbers = list(first)
    while len(numbers) < count:
        following = numbers[-degree] ^ numbers[-degree] << degree
        for step in range(1, degree):
            if inner >> (degree - 1 - step) & 1:
                following ^= numbers[-step] << step
        numbers.append(following)
    return numbers[:count]
