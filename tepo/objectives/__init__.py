"""Every objective of the papers as a composition of orthogonal parts, usable on its own: see docs/objectives.md."""

from tepo.objectives.batch import Comm, Groups, TokenBatch
from tepo.objectives.kind import Needs
from tepo.objectives.loading import load_objective, names, objective_mapping
from tepo.objectives.metric_sums import Metrics
from tepo.objectives.objective import Loss, Objective
from tepo.objectives.plan import Plan

__all__ = [
    "Comm",
    "Groups",
    "Loss",
    "Metrics",
    "Needs",
    "Objective",
    "Plan",
    "TokenBatch",
    "load_objective",
    "names",
    "objective_mapping",
]
