"""The grader of the project: reward in training and verdict in evaluation, one code path."""

from tepo.problems.grader.grader import Grader, Verdict, given_up
from tepo.problems.grader.options import GraderOptions

__all__ = ["Grader", "GraderOptions", "Verdict", "given_up"]
