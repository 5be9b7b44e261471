"""Every objective of the papers as a composition of orthogonal parts, usable on its own: see docs/objectives.md."""

from tepo.common.schema import option
from tepo.objectives.axes.importance_ratio import Carried
from tepo.objectives.axes.surrogate import Gain
from tepo.objectives.axis import Line, Needs, Part
from tepo.objectives.batch import Comm, Groups, TokenBatch
from tepo.objectives.loading import load_objective, names, objective_mapping
from tepo.objectives.metric_sums import Metrics
from tepo.objectives.objective import Loss, Objective, Plan
from tepo.objectives.terms import Terms

__all__ = [
    "Carried",
    "Comm",
    "Gain",
    "Groups",
    "Line",
    "Loss",
    "Metrics",
    "Needs",
    "Objective",
    "Part",
    "Plan",
    "Terms",
    "TokenBatch",
    "load_objective",
    "names",
    "objective_mapping",
    "option",
]
