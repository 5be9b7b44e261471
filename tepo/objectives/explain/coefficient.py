"""The number that multiplies grad log pi_t in J, before the sums' weights: what a row does to each token."""

from typing import NamedTuple

from tepo.objectives.axes.importance_ratio import Carried
from tepo.objectives.objective import Objective


class Coefficient(NamedTuple):
    """The coefficient in plain text, where no clip acts, and where the policy term's part of it is 0."""

    text: str
    zero: str


def coefficient(objective: Objective) -> Coefficient:
    """The coefficient of grad log pi_t of one token, all that is detached taken as constant."""
    carried = carried_by(objective)
    policy = objective.surrogate.explained(carried)
    correction = objective.correction
    weighed = "" if carried.over else objective.weight.explained.zero
    corrected = "" if carried.over and correction.drops else correction.explained.zero
    terms = [f"{carried.before}{policy.coefficient}", *(part.explained.coefficient for part in objective.penalties)]
    return Coefficient("  ".join(terms), policy.zero + weighed + corrected)


def carried_by(objective: Objective) -> Carried:
    """The factor of a token's log pi in the policy term.

    Where the gradient flows through a ratio of several tokens, it carries the terms of all of them:
    of the response (index s), or, with a prefix ratio, of the tokens u >= t."""
    ratio, varies = objective.ratio, objective.advantage.varies
    drops = tuple(name for name, axis in (("lambda", objective.weight), ("v", objective.correction)) if axis.drops)
    before = objective.weight.explained.formula.text + objective.correction.explained.formula.text
    index = ratio.spread if objective.surrogate.through_ratio else ""
    differ = bool(before) or varies  # among the terms, beside the ratio
    if not index or (ratio.per_response and not differ):
        return Carried(ratio, "", before, "A", varies, drops)
    amount = f"{before.replace('_t', f'_{index}')}A_{index}" if differ else "A"
    return Carried(ratio, index, "", amount, varies, drops)
