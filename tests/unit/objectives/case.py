"""The small rollout that `tepo check-objective` works on."""

from tepo.objectives.case import Case, make_case, shuffled

__all__ = ["Case", "make_case", "shuffled"]
