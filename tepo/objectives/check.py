"""Checks that every formula passes, one with functions of a user's own among them: the library part of
`tepo explain --check`.

Each takes an objective and returns what is wrong, an empty text where nothing is. They work on small rollouts of a
tabular policy (`tepo.objectives.testing.case`).

What a formula cannot say needs no check: padding, a denominator of one's own, something detached without a word, a
gradient into other tensors than the policy's, a NaN that is lost, a tensor that `needs` does not name. What a function
of a user's own can break is seen at its outcome."""

import operator
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.formula.graph import Node
from tepo.objectives import Groups, Metrics, Objective, Plan, TokenBatch
from tepo.objectives.own_functions import executed_anew
from tepo.objectives.scope import Value
from tepo.objectives.testing.case import LIMIT, TabularCase, distance, edge_cases, make_case, partitions, shuffled
from tepo.objectives.testing.simulated_ranks import SimulatedRank, on_ranks

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}  # of gradients, relative
SLOPE_TOLERANCE = 1e-6  # of differences, relative to the gradient
STEP = 1e-6  # of a logit, in float64: the rounding of a loss near 1 leaves ten digits of the slope
FAR = 25.0  # a log-ratio beyond 20, where exp and k3 are held
SALT, _SEED = 3, 21
INSTEAD = (  # of what a function keeps, which checkpoints and other ranks do not have
    "what was before a step is in V, the success rate of a prompt so far, in d and H_old, and in the means and "
    "deviations of _r and _b; a table is made at the top of the file or by functools.cache"
)


@dataclass(frozen=True)
class Check:
    """The outcome of one check."""

    name: str
    what: str
    wrong: str  # empty where it holds


def prepared_case(objective: Objective, dtype: torch.dtype = torch.float64) -> tuple[TabularCase, TokenBatch]:
    """36 responses and their mini-batch, whose log-probs and entropies have a graph down to the logits."""
    case = make_case(_SEED, repeat=4, dtype=dtype)
    return case, case.batch(objective)


def gradient_of_part(objective: Objective, case: TabularCase, batch: TokenBatch, plan: Plan) -> tuple[Tensor, Metrics]:
    """Gradient of one (micro-)batch's loss by the logits of the full case [N, V], and its metrics."""
    out = objective.loss(batch, plan)
    (slope,) = torch.autograd.grad(out.loss, case.logits, retain_graph=True)
    return slope, out.metrics


def unsplit(objective: Objective, case: TabularCase, batch: TokenBatch) -> tuple[Tensor, Metrics]:
    """Gradient and metrics of the mini-batch in one piece."""
    return gradient_of_part(objective, case, batch, objective.prepare(batch, salt=SALT))


def _differs(what: str, slope: Tensor, reference: Tensor, allowed: float) -> str:
    gap = distance(slope, reference)
    return "" if gap <= allowed else f"{what}: the gradient differs by {gap:.1e} of its norm (allowed: {allowed:.0e})"


def _unequal(what: str, metrics: Mapping[str, float], reference: Mapping[str, float]) -> str:
    """The first metric that is not the same to 1e-5."""
    for name, value in reference.items():
        if abs(metrics[name] - value) > max(1e-5 * abs(value), 1e-7):
            return f"{what}: {name} is {metrics[name]:g}, not {value:g}"
    return ""


# the checks -----------------------------------------------------------------------------------------------------------
def gradient(objective: Objective) -> str:
    """The gradient agrees with finite differences in float64."""
    case, batch = prepared_case(objective)
    plan = objective.prepare(batch, salt=SALT)
    analytic, _ = gradient_of_part(objective, case, batch, plan)
    if not analytic.norm() > 0:
        return f"the gradient's norm is {float(analytic.norm()):g}"
    frozen_plan, base = _held(objective, batch, plan), case.logits.detach()
    draws = torch.Generator().manual_seed(0)
    directions = torch.randn((6, *base.shape), generator=draws, dtype=base.dtype)

    def loss(logits: Tensor) -> float:
        return float(objective.loss(replace(case, logits=logits).batch(objective, batch.advantages), frozen_plan).loss)

    slopes = [(loss(base + STEP * direction) - loss(base - STEP * direction)) / (2 * STEP) for direction in directions]
    gap = distance((directions * analytic).sum((1, 2)), torch.tensor(slopes, dtype=torch.float64))
    return "" if gap <= SLOPE_TOLERANCE else f"{gap:.1e} from finite differences (allowed: {SLOPE_TOLERANCE:.0e})"


def _held(objective: Objective, batch: TokenBatch, plan: Plan) -> Plan:
    """The plan with the values of all that carries no gradient, which the loss then takes from it."""
    values: dict[int, Value] = dict(plan.values)

    def noted(node: Node, *args: Any) -> Value:
        value = objective._value(node, *args)
        return value if node.gradient else values.setdefault(node.number, value)

    watched = copy(objective)
    watched.__dict__["_value"] = noted
    watched.loss(batch, plan)
    return replace(plan, values=values)


def micro_batches(objective: Objective, dtype: torch.dtype = torch.float64) -> str:
    """Neither micro-batches nor the order of the responses change gradient or metrics."""
    case, batch = prepared_case(objective, dtype)
    expected, metrics = unsplit(objective, case, batch)
    # The plan is made without what the policy has to be run for, where the objective says that it needs none of that
    before = batch if objective.needs.prepass else replace(batch, logprobs=None, entropies=None, full_kl=None)
    plan = objective.prepare(before, salt=SALT)
    for parts in partitions(len(batch.lengths)):
        outcomes = [gradient_of_part(objective, case, batch.select(part), plan.select(part)) for part in parts]
        added = reduce(operator.add, [more for _, more in outcomes])
        what = f"{len(parts)} micro-batches"
        wrong = _differs(what, torch.stack([slope for slope, _ in outcomes]).sum(0), expected, TOLERANCE[dtype])
        if wrong := wrong or _unequal(what, added.means(), metrics.means()):
            return wrong
    other, moved = shuffled(case, torch.randperm(len(batch.lengths), generator=torch.Generator().manual_seed(0)))
    slope, _ = unsplit(objective, other, other.batch(objective))
    return _differs("responses in another order", slope, expected[moved], TOLERANCE[dtype])


def ranks(objective: Objective) -> str:
    """Two ranks give the gradient, metrics and advantages of one process, even if one has no response."""
    case, batch = prepared_case(objective)
    expected, metrics = unsplit(objective, case, batch)
    every = range(len(batch.lengths))
    places = case.group_ids.unique(return_inverse=True)[1]  # groups are whole on one rank
    for what, share, groups in (("two ranks", 3, 2), ("two ranks, one without a response", 1, 0)):

        def of_a_rank(comm: SimulatedRank, share: int = share, groups: int = groups) -> tuple[Any, ...]:
            own_case, whole_batch = prepared_case(objective)
            own_batch = whole_batch.select([i for i in every if (i % share == 0) == (comm.rank == 0)])
            own_slope, own_metrics = gradient_of_part(
                objective, own_case, own_batch, objective.prepare(own_batch, comm=comm, salt=SALT)
            )
            few, moved = shuffled(case, torch.nonzero((places < groups) == bool(comm.rank))[:, 0])
            return comm.all_sum(own_slope), own_metrics.means(comm), objective.advantages(few.groups(), comm), moved

        for total, means, advantages, moved in on_ranks(of_a_rank):
            wrong = _differs(what, total, expected, TOLERANCE[torch.float64])
            if wrong := wrong or _unequal(what, means, metrics.means()):
                return wrong
            if distance(advantages, batch.advantages[moved]) > TOLERANCE[torch.float64]:
                return f"{what}: other advantages than in one process"
    return ""


def extremes(objective: Objective) -> str:
    """Loss and gradient are finite in float32 if rewards are equal, responses empty or the policy far away."""
    for what, case in edge_cases(_SEED, FAR).items():
        batch = case.batch(objective)
        out = objective.loss(batch, objective.prepare(batch, salt=SALT)).loss
        if not out.isfinite():
            return f"{what}: the loss is {out.item():g} in float32"
        (slope,) = torch.autograd.grad(out, case.logits)
        if not slope.isfinite().all():
            return f"{what}: the gradient is not finite in float32"
    return ""


def alike(objective: Objective) -> str:
    """Equal responses get advantages of exactly 0, if those of a mixed group add up to 0."""
    lengths = torch.full((9,), 3)
    ids = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3])  # the last one is alone

    def advantages(*rewards: float) -> Tensor:
        reward_tensor = torch.tensor(rewards, dtype=torch.float64)
        entropies, values = (torch.full((size,), 0.7, dtype=torch.float64) for size in (27, 9))
        groups = Groups(reward_tensor, ids, lengths, entropies, lengths > 0, 2 * LIMIT, values=values)
        return objective.advantages(groups).double()

    sums = torch.zeros(4, 3, dtype=torch.float64).index_add(0, ids, advantages(1, 0, 0, 1, 0, 0, 1, 1, 1).view(9, 3))
    if sums.abs().max() > SLOPE_TOLERANCE:
        return ""
    like = [advantages(*[value] * 9) for value in (1, 0, 0.3)]
    equal_advantages = torch.cat([*like, advantages(1, 1, 1, 0.3, 0.3, 0, 0, 0, 1)])
    worst = float(equal_advantages[equal_advantages.abs().nan_to_num(torch.inf).argmax()])
    return f"equal rewards of a group give an advantage of {worst:.3g}, not 0" if worst != 0 else ""


def repeated(objective: Objective) -> str:
    """Calling it again gives the same bits."""
    case, batch = prepared_case(objective)
    first, second = ([objective.advantages(case.groups()), unsplit(objective, case, batch)[0]] for _ in range(2))
    same = all(map(torch.equal, first, second)) and torch.equal(first[0], batch.advantages)
    return "" if same else "the same call gives other numbers: a draw, or an argument that is changed in place"


def float32(objective: Objective) -> str:
    """float32 gives the gradient of float64, up to rounding."""
    slopes = [unsplit(objective, *prepared_case(objective, dtype))[0] for dtype in (torch.float32, torch.float64)]
    return _differs("float32", slopes[0].double(), slopes[1], TOLERANCE[torch.float32])


_ALL = (gradient, micro_batches, ranks, extremes, alike, repeated, float32)
CHECKS: dict[str, Callable[[Objective], str]] = {check.__name__.replace("_", "-"): check for check in _ALL}


def check_objective(objective: Objective) -> list[Check]:
    """All checks of an objective. Raises UserError where a function of a user's own cannot be run at all."""
    check_runs(objective)
    outcomes = []
    for name, check in CHECKS.items():
        try:
            wrong = check(objective)
        except UserError as error:
            wrong = f"{error.what} ({error.where})" if error.where else error.what
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}".splitlines()[0]
        if wrong and objective.functions:
            wrong += f"; functions of your own: {', '.join(objective.functions)}"
        outcomes.append(Check(name, (check.__doc__ or "").splitlines()[0], wrong))
    return outcomes


def check_runs(objective: Objective) -> None:
    """Raises UserError where an objective with functions of a user's own cannot be computed, with its line, and where
    they keep something from one call to the next: what training asks before it starts. Without any, all that can be
    wrong was said when it was built."""
    if objective.functions:
        contents = executed_anew(objective.functions)
        before = contents()
        for dtype in (torch.float32, torch.float64):
            unsplit(objective, *prepared_case(objective, dtype))
        for (file, name), values in contents().items():
            if values != before.get((file, name)):
                what = f"calls of the functions change {name}: a function keeps nothing from call to call"
                raise UserError(what, where=file, fix=INSTEAD)
