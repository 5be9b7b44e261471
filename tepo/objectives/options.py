"""Options of the kinds of an axis: fields that `tepo.strict` reads, with their source for `tepo explain`."""

from tepo.strict import option

__all__ = ["EPS_SOURCE", "option"]

EPS_SOURCE = "verl compute_grpo_outcome_advantage; the papers print none"
