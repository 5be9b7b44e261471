"""The grader of the project: reward in training and verdict in evaluation, one code path."""

from tepo.problems.grader.grader import Grader
from tepo.problems.grader.options import GraderOptions
from tepo.problems.grader.verdict import Verdict, given_up

__all__ = ["Grader", "GraderOptions", "Verdict", "given_up"]
