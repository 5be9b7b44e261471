"""Reports of how far an evaluation is."""

from collections.abc import Callable

Report = Callable[[str, int, int], None]
"""Called with a benchmark, its rows done and its rows in all, as they come; from any thread."""


def silent(benchmark: str, rows: int, total: int) -> None:
    """A report to nobody."""
