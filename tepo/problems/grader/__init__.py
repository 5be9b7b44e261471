"""The grader of the project: reward in training and verdict in evaluation, one code path."""

from typing import TYPE_CHECKING, Any

from tepo.problems.grader.options import GraderOptions

if TYPE_CHECKING:
    from tepo.problems.grader.grader import Grader, Verdict, given_up

__all__ = ["Grader", "GraderOptions", "Verdict", "given_up"]


def __getattr__(name: str) -> Any:
    """The rest where it is asked for: it takes a quarter of a second, and plans and tables need the options alone."""
    if name in __all__:
        from tepo.problems.grader import grader

        return getattr(grader, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
